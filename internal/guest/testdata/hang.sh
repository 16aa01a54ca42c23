#!/bin/sh
# A leader that sleeps, a child that ignores SIGTERM, and an escapee: double
# forked, in a session of its own, writing a heartbeat to $HB.
( setsid sh -c 'while :; do echo beat >> "$HB"; sleep 0.05; done' >/dev/null 2>&1 & )
sh -c 'trap "" TERM; while :; do sleep 0.05; done' &
echo started
sleep 3600
