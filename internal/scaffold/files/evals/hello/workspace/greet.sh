echo "Helo, you!"
