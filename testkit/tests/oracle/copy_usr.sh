# Copies about as many bytes as the image takes, of programs, text and small files. With the variable
# set, all of /usr, for which the image has to be larger.
set -e
if [ -n "$PLATTER_TEST_WHOLE_USR" ]; then cp -a /usr "$1"; exit; fi
mkdir "$1/include" "$1/bin"
cp -a /usr/include/linux "$1/include"
cd /usr/share
find doc -type f | sort | head -200 | while read -r file; do cp -a --parents "$file" "$1"; done
find /usr/bin -type f -size -400k | sort | head -40 | while read -r file; do cp -a "$file" "$1/bin"; done
