[ "$(sh sum.sh 2 3)" = 5 ] || { echo "2 + 3 is not 5"; exit 1; }
