set -e
cd "$1"
seed() { i=0; while [ $i -lt "$1" ]; do echo "line $i of a text that compresses: $((i * 7919 % 1009))"; i=$((i + 1)); done; }
noise() { dd if=/dev/urandom bs="$1" count=1 iflag=fullblock status=none; }
seed 4000 > text
for size in 0 1 100 2048 2049 4095 4096 4097 12288 131072 131073 200000; do
    head -c $size text > size.$size
done
cat text text text text text text text > large
noise 300000 > random
truncate -s 5M sparse
noise 5000 | dd of=sparse bs=1 seek=1048576 conv=notrunc status=none
echo end >> sparse
sync -f .
# Parts of extents that were overwritten.
cp large bookend
sync -f .
for at in 3 40 41 77; do noise 4096 | dd of=bookend bs=4096 seek=$at conv=notrunc status=none; done
head -c 9000 text | dd of=random bs=1 seek=70001 conv=notrunc status=none
sync -f .
truncate -s 150001 bookend
fallocate -l 300000 prealloc
head -c 20000 text | dd of=prealloc bs=4096 seek=20 conv=notrunc status=none
touch keepsize
fallocate -n -l 1M keepsize
seed 500 > punched
sync -f .
fallocate -p -o 4096 -l 8192 punched
cp --reflink=always large reflink
noise 8192 | dd of=reflink bs=8192 seek=5 conv=notrunc status=none
touch nodatacow
chattr +C nodatacow
cat text >> nodatacow
mkdir compressed
chattr +c compressed
cat text > compressed/file
mkdir nocompress
chattr +m nocompress 2>/dev/null || true
cp text nocompress/file
ln -s target link
ln -s "$(printf 'l%.0s' $(seq 1000))" long_link
mkfifo fifo
mknod char c 5 1
mknod block b 259 70000
ln text hard
mkdir names
i=0
while [ $i -lt 400 ]; do echo $i > names/name.$i; i=$((i + 1)); done
rm names/name.1?
mv names/name.5 names/name.6
touch "names/$(printf 'n%.0s' $(seq 255))"
mkdir links
i=0
while [ $i -lt 300 ]; do ln text "links/a rather long name of a link that fills a reference item $i"; i=$((i + 1)); done
mkdir -p deep/a/b/c/d
setfattr -n user.one -v value text
setfattr -n user.large -v "$(head -c 3000 text | tr '\n' ' ')" text
setfattr -n trusted.two -v 0xff00 deep
setfacl -m u:1000:rw,g:100:r text
setfacl -d -m u:1000:rwx deep
setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 size.4096
chmod 4755 size.1
chown 1000:100 size.100
chattr +i size.2048
chattr +a size.2049
chattr +d size.0
touch -d '1901-12-14 00:00:00.123456789 UTC' size.4095
touch -d '2446-05-10 00:00:00 UTC' size.4097
