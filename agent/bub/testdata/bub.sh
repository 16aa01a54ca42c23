#!/bin/sh
# A stand-in for Bub: it takes the same arguments and keeps the same kind of
# tape, and does what the message says.
[ "$1" = --workspace ] && [ "$3" = run ] && [ "$4" = --session-id ] && [ "$6" = -- ] || exit 2
half() { printf %s "$1" | md5sum | cut -c1-16; }
tape="$BUB_HOME/tapes/$(half "$2")__$(half "$5").jsonl"
mkdir -p "${tape%/*}"
say() { printf '{"id": 1, "kind": "%s", "payload": %s, "meta": {}, "date": "2026-07-01T10:00:00+00:00"}\n' "$1" "$2" >>"$tape"; }
usage=
case "$7" in *count*) usage=', "usage": {"prompt_tokens": 12, "completion_tokens": 3}' ;; esac
run() { say event "{\"name\": \"run\", \"data\": {\"status\": \"$1\"$usage}}"; }
case "$7" in
*fail*) say error '{"kind": "temporary", "message": "Error code: 429 - rate limit"}'; run error; exit 1 ;;
*cut*) say tool_call '{"calls": [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]}'; run ok; exit 0 ;;
*hang*) touch started; setsid sleep 600 & sleep 600 ;;
*secret*) say message "{\"role\": \"assistant\", \"content\": \"$(printf %s "$BUB_API_KEY" | sha256sum | cut -c1-64)\"}"; run ok ;;
*digest*) say message "{\"role\": \"assistant\", \"content\": \"$(printf %s "$7" | sha256sum | cut -c1-64)\"}"; run ok ;;
*)
  echo hi >answer.txt
  say tool_call '{"calls": [{"id": "c", "function": {"name": "fs.write", "arguments": "{\"path\": \"answer.txt\"}"}}]}'
  say tool_result '{"results": ["wrote"]}'
  run ok
  say message '{"role": "assistant", "content": "finished"}'
  run ok ;;
esac
echo "[cli:local]"
