import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, prompt = sys.argv[1:]
tokenizer, model = (
    AutoTokenizer.from_pretrained(folder),
    AutoModelForCausalLM.from_pretrained(folder),
)
given = tokenizer(prompt, return_tensors="pt")
print(
    tokenizer.decode(model.generate(**given, max_new_tokens=40, do_sample=False, pad_token_id=0)[0])
)
