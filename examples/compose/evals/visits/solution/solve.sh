wget -q -O /dev/null "http://app/cgi-bin/kv?set=state=ok"
wget -q -O answer.txt "http://app/cgi-bin/kv?get=state"
