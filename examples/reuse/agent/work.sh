# A stand-in for an agent that solves the task and does not tidy up.
cat >/dev/null # the prompt
printf '%s\n' "$(($(cat question.txt)))" >answer.txt
echo scratch >"left-$$"
mkdir -p cache/deep && echo x >cache/deep/file && chmod 0500 cache
chmod 0600 question.txt
mkdir -p "$HOME/.agent" && echo "$$" >>"$HOME/.agent/history"
sleep 600 >/dev/null 2>&1 &
echo "The answer is in answer.txt."
