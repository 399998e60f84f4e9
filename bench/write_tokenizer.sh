#!/usr/bin/env bash
# Writes a tokenizer.json into a folder that has only a config.json, so that a server of dummy
# weights sends text: the demo model's, with words in between its tokens and its special tokens, as
# many as the model has ids. Usage: write_tokenizer.sh FOLDER
set -eu
demo=$(cd "$(dirname "$0")/../demo" && pwd)
of_config() { sed -n "s/.*\"vocab_size\": *\([0-9]*\).*/\1/p" "$1/config.json" | head -1; }
awk -v added="$(($(of_config "$1") - $(of_config "$demo")))" '
  /"vocab": \{/ { in_vocab = 1 }
  !in_vocab && /^      "id": [0-9]+,$/ { first = first == 0 ? $2 + 0 : first; $2 = $2 + added ","; $0 = "      " $0 }
  { print }
  /"vocab": \{/ { for (i = first; i < first + added; i++) printf "      \"\\u0120w%d\": %d,\n", i, i }
' "$demo/tokenizer.json" >"$1/tokenizer.json.partial"
mv "$1/tokenizer.json.partial" "$1/tokenizer.json"
cp "$demo/tokenizer_config.json" "$1/"
