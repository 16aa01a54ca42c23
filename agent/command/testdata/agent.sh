#!/bin/sh
# Plays a coding agent; $MODE chooses what it does. Events go to
# $ASSAY_EVENTS_FILE, the reply to standard output.
ev() { printf '%s\n' "$1" >>"$ASSAY_EVENTS_FILE"; }
edit() {
	ev '{"type":"operation.started","id":"c1","name":"edit","input":{"path":"answer.txt"}}'
	echo done >answer.txt
	ev '{"type":"operation.finished","id":"c1","status":"completed"}'
}
case $MODE in
works)
	cat >/dev/null
	ev '{"type":"message","role":"user","text":"make it so"}'
	edit
	ev '{"type":"message","role":"assistant","text":"finished"}'
	echo 'log lines are no reply'
	;;
plain)
	cat >/dev/null
	echo done >answer.txt
	echo finished
	;;
fails)
	edit
	echo 'cannot find the bug' >&2
	exit 3
	;;
hangs)
	setsid sh -c 'while :; do sleep 1; done' &
	touch started
	sleep 3600
	;;
digest)
	file=$(sha256sum <"$ASSAY_PROMPT_FILE" | cut -d' ' -f1)
	input=$(sha256sum | cut -d' ' -f1)
	[ "$file" = "$input" ] && echo "$file"
	;;
secret) printf %s "$AGENT_KEY" | sha256sum | cut -d' ' -f1 ;;
usage)
	ev '{"type":"usage","usage":{"inputTokens":10,"cacheReadTokens":400}}'
	edit
	ev '{"type":"usage","usage":{"inputTokens":2,"outputTokens":7}}'
	;;
loses) ev '{"type":"operation.started","id":"c1","name":"bash"}' ;;
junk)
	ev 'npm WARN deprecated'
	ev '{"type":"brand-new-event","detail":[1,2]}'
	edit
	ev '["no","object"]'
	ev '{"type":""}'
	;;
half)
	edit
	printf '{"type":"operation.started","id":"c2","na' >>"$ASSAY_EVENTS_FILE"
	;;
huge)
	{
		printf '{"type":"message","role":"assistant","text":"'
		head -c 9000000 /dev/zero | tr '\0' x
		printf '"}\n'
	} >>"$ASSAY_EVENTS_FILE"
	edit
	;;
anew)
	echo '{"type":"operation.started","id":"c1","name":"edit"}' >"$ASSAY_EVENTS_FILE"
	ev '{"type":"operation.finished","id":"c1","status":"completed"}'
	;;
files) cat "$ASSAY_FILES_DIR"/* ;;
env) env | sort ;;
esac
