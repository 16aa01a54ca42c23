#!/bin/sh
set -eu
fixed=$(sed 's/Helo/Hello/' greet.sh)
printf '%s\n' "$fixed" >greet.sh
echo "greet.sh"
