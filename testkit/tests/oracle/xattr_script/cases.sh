# Extended attributes and access control lists as a user of a mount sees them. Runs in the root of an
# empty filesystem; what it prints is the same wherever it runs. $1 is the largest value to try.

run() {
    echo "\$ $*"
    "$@" 2>&1
    echo "= $?"
}

# As an ordinary user: the working directory is all that is needed to get here.
as() {
    user=$1
    shift
    run setpriv --reuid "$user" --regid "$user" --clear-groups "$@"
}

bytes() {
    head -c "$1" /dev/zero | tr '\0' "$2"
}

attributes() {
    run getfattr -h -d -m - "$@"
}

acl() {
    run getfacl -n -p "$@"
    run stat -c '%n %a %u %g' "$@"
}

echo "# access lists and the mode"
umask 022
touch file
run setfacl -m u:1000:rw,g:2000:r file
acl file
attributes file
run chmod 640 file
acl file
run chmod 604 file
acl file
run chmod 0 file
acl file
run setfacl -m m::rwx file
acl file
run setfacl -m u:1001:rwx,o::- file
run chmod g-w,o+x file
acl file
run chmod 4755 file
acl file
run setfacl -x u:1000 file
acl file
run setfacl -x u:1000 file
run setfacl -x u:4242 file
run setfacl -b file
acl file
attributes file
run setfacl -m u::rw,g::r,o::- file
acl file
attributes file
run setfacl -d -m u:1000:rw file
run setfacl -m u:1000:rwx,m::r file
run chown 1000:1000 file
acl file
as 1001 cat file
as 1000 setfacl -m u:1001:r file
as 1001 cat file
as 1001 setfacl -m u:1001:rwx file
as 1001 chmod 777 file
as 1000 chmod 600 file
as 1001 cat file
acl file
rm file

echo "# default lists"
mkdir dir
run setfacl -d -m u:1000:rwx,g:2000:rx,o::- dir
acl dir
touch dir/file
mkdir dir/sub
mkfifo dir/fifo
mknod dir/null c 1 3
ln -s nowhere dir/link
acl dir/file dir/sub dir/fifo dir/null
run getfattr -h -d -m - dir/link
umask 077
touch dir/private
mkdir dir/sub/private
acl dir/private dir/sub/private
run setfacl -d -m m::r dir/sub
touch dir/sub/masked
acl dir/sub dir/sub/masked
run setfacl -k dir/sub
touch dir/sub/plain
acl dir/sub dir/sub/plain
umask 022
touch dir/sub/plainer
acl dir/sub/plainer
run setfacl -d -m u::-,g::-,o::- dir/sub/private
touch dir/sub/private/none
acl dir/sub/private/none
run setfacl -R -b dir
acl dir dir/sub dir/file
run setfacl -d -m u::rwx,g::rx,o::rx dir
mkdir dir/minimal
acl dir dir/minimal
attributes dir dir/minimal
run setfacl -m u:1000:rwx dir/link
run chmod 2775 dir
chgrp 2000 dir
run setfacl -d -m u:1000:rwx dir
mkdir dir/setgid
touch dir/setgid/file
acl dir dir/setgid dir/setgid/file
rm -r dir

echo "# permissions to set attributes"
touch file
mkdir dir sticky
chmod 1777 sticky
mkfifo fifo
mknod null c 1 3
ln -s file link
for name in user.a trusted.a security.a system.a system.data gnu.a other.a user. trusted. a system.richacl; do
    for path in file dir sticky fifo null link; do
        run setfattr -h -n "$name" -v value "$path"
        run getfattr -h -n "$name" "$path"
        run setfattr -h -x "$name" "$path"
    done
done
attributes file dir sticky fifo null link
run setfattr -n user.a -v 1 file
run setfattr -n trusted.a -v 2 file
run setfattr -n security.a -v 3 file
attributes file
as 1000 getfattr -d -m - file
as 1000 getfattr -n trusted.a file
as 1000 getfattr -n security.a file
as 1000 setfattr -n user.b -v 1 file
as 1000 setfattr -x user.a file
as 1000 setfattr -n trusted.b -v 1 file
as 1000 setfattr -n security.b -v 1 file
as 1000 setfattr -n user.b -v 1 sticky
as 1000 setfattr -n user.b -v 1 dir
chmod 600 file
as 1000 getfattr -n user.a file
as 1000 getfattr -d -m - file
chown 1000 file
as 1000 setfattr -n user.c -v 1 file
as 1000 setfattr -n trusted.c -v 1 file
as 1000 getfattr -d -m - file
chmod 400 file
as 1000 setfattr -n user.d -v 1 file
as 1000 setfattr -x user.c file
attributes file
run setfattr -x user.none file
run getfattr -n user.none file
run setfattr -n user.a -v 1 none
chattr +i file 2>/dev/null && run setfattr -n user.i -v 1 file && chattr -i file
chattr +a file 2>/dev/null && run setfattr -n user.i -v 1 file && chattr -a file
rm -r file dir sticky fifo null link

echo "# sizes of names"
touch file
for length in 1 100 249 250 251 255; do
    name=user.$(bytes $length n)
    run setfattr -n "$name" -v value file
    run getfattr -n "$name" file
done
attributes file
rm file

echo "# sizes of values"
touch file
run setfattr -n user.empty file
for length in 0 1 3 4 5 50 60 64 65 66 67 68 69 70 71 72 73 74 75 76 80 90 100 110 120 200 300 \
    400 900 950 960 964 965 966 967 968 969 970 971 972 973 974 976 980 990 1000 1023 1024 1025 2000 \
    3000 4000 4030 4036 4038 4040 4041 4042 4043 4044 4045 4046 4047 4048 4090 4096 4097 9000 30000 \
    65000 65535 65536 65537; do
    [ "$length" -le "$1" ] || continue
    run setfattr -n user.value -v "$(bytes $length v)" file
    getfattr --only-values -n user.value file 2>&1 | sha256sum
done
run setfattr -x user.value file
attributes file
rm file

echo "# space for many"
touch file
for length in 10 40 100 150 300; do
    for number in 1 2 3 4 5 6 7 8 9 10 11 12; do
        run setfattr -n user.$length.$number -v "$(bytes $length v)" file
    done
done
attributes file
for number in 1 3 5 7 9 11; do
    run setfattr -x user.100.$number file
    run setfattr -n user.10.$number -v "$(bytes 30 w)" file
    run setfattr -n user.300.$number -v "$(bytes 280 w)" file
done
attributes file
for number in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    entries=$entries,u:$((3000 + number)):rw
    run setfacl -m "${entries#,}" file
done
acl file
run setfacl -b file
acl file

echo "# copies and links"
cp -a file copy
ln copy hard
run setfattr -n user.hard -v 1 hard
attributes copy hard
mv copy moved
rm hard
attributes moved
run setfacl -m u:1000:rw moved
cp --preserve=mode moved mode
acl mode
cp --preserve=all moved all
acl all
attributes all
for number in 1 2 3 4 5 6 7 8; do
    cp -a moved copy$number
done
rm copy1 copy3
run setfattr -n user.hard -v 2 copy2
attributes copy2 copy4
rm -f file moved mode all copy*

echo "# no space"
for number in 1 2 3 4 5 6 7 8; do
    touch file$number
done
for number in $(seq 200); do
    : > filler$number
done
for size in 1024 256 64 16 4 1; do
    for number in $(seq 16); do
        head -c ${size}k /dev/zero > fill.$size.$number && sync fill.$size.$number || break
    done 2>/dev/null
done
# How much contents leave differs between filesystems.
for number in $(seq 200); do
    setfattr -n user.value -v "$number.$(bytes 800 f)" filler$number 2>/dev/null || break
done
[ "$number" -lt 200 ] && echo "full"
for number in 1 2 3 4 5 6 7 8; do
    run setfattr -n user.value -v "$(bytes 800 $number)" file$number
    run setfattr -n user.little -v 1 file$number
done
attributes file1 file8
rm fill*
sync .
for number in 1 2 3 4 5 6 7 8; do
    run setfattr -n user.value -v "$(bytes 800 $number)" file$number
done
rm -f file*
run ls -A
