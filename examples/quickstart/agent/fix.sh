#!/bin/sh
# A stand-in for a coding agent: it reads the prompt, edits files of the current
# folder and says what it did. One of its answers is a lie; see broken-promise.
set -eu
prompt=$(cat)

case "$prompt" in
*greet.sh*)
	fixed=$(sed 's/Helo/Hello/' greet.sh)
	printf '%s\n' "$fixed" >greet.sh
	echo "I corrected the greeting in greet.sh."
	;;
*docs/hello.txt*)
	mkdir -p docs
	echo "hello from the agent" >docs/hello.txt
	echo "I wrote docs/hello.txt."
	;;
*report.txt*)
	echo "I added the total to report.txt."
	;;
*)
	echo "I do not know how to do that."
	exit 1
	;;
esac
