import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, prompt = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer(prompt, return_tensors="pt")
outputs = model.generate(**inputs, max_new_tokens=40, do_sample=False, pad_token_id=0)
print(tokenizer.decode(outputs[0]))
