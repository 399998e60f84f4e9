#!/bin/sh
# Lets the demo model answer a few questions, streaming.
set -eu
megalith=$1
for question in "What is 137 + 245?" "Sort these words: pear, apple, fig." \
  "How many letters are in the word planet?" "What day comes after Monday?" "Who are you?"; do
  printf '\n> %s\n' "$question"
  "$megalith" run --chat -p "$question"
done
