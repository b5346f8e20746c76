// Logits of a text, or its greedy continuation, by transformers.js: asked by one line of JSON on standard input.
//   node transformers_js.mjs PACKAGE FOLDER   <- {"ids": [...], "steps": 0}   -> {"logits": [...]} or {"tokens": [...]}
import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , at, folder] = process.argv;
const told = JSON.parse(readFileSync(join(at, "package.json"), "utf8"));
const entry = told.exports?.node?.import?.default ?? told.exports?.import ?? told.main;
const { AutoModelForCausalLM, Tensor, env } = await import(pathToFileURL(join(at, entry)));
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);

const { ids, steps } = JSON.parse(readFileSync(0, "utf8"));
const model = await AutoModelForCausalLM.from_pretrained(basename(folder), { dtype: "fp32", device: "cpu" });
const row = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
const inputs = { input_ids: row(ids), attention_mask: row(ids.map(() => 1)) };
if (steps === 0) {
  const { logits } = await model(inputs);
  console.log(JSON.stringify({ logits: Array.from(logits.data) }));
} else {
  const tokens = await model.generate({ ...inputs, max_new_tokens: steps, min_new_tokens: steps, do_sample: false, eos_token_id: null });
  console.log(JSON.stringify({ tokens: Array.from(tokens.data, Number).slice(ids.length) }));
}
