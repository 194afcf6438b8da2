#!/usr/bin/env bash
# Local stand-in for python:3.11-slim, cut from this Debian 12 machine's own packages (no network): tests the compose file and
# the Dockerfiles, not that image. usage: mkbase.sh OUT.tar
set -euo pipefail
out=$1; list=$(mktemp); root=$(mktemp -d)
pk=$(apt-cache depends --recurse --installed --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
     python3 python3-venv python3-pip ca-certificates \
     $(dpkg-query -W -f '${Essential} ${Priority} ${Package}\n' | awk '$1=="yes"||$2=="required"{print $3}') | grep -E '^[a-z0-9]' | sort -u)
pk=$(dpkg-query -W -f '${db:Status-Abbrev} ${binary:Package}\n' $pk 2>/dev/null | awk '$1=="ii"{print $2}' || :)
{ dpkg -L $pk | grep '^/' ; 
  printf '%s\n' /bin /sbin /lib /lib64 /etc/passwd /etc/group /etc/shadow /etc/alternatives /etc/ld.so.cache /etc/ld.so.conf.d \
    /etc/debian_version /etc/os-release /etc/apt/sources.list.d/debian.sources $(ls /etc/apt/apt.conf.d/* 2>/dev/null) \
    /usr/bin/awk /usr/bin/which; } | sort -u |
  sed -E "s,^/(bin|sbin|lib|lib64|lib32)/,/usr/\1/," | sort -u |
  grep -vE '^/usr/share/(doc|man|locale|info|lintian)/|^/(proc|sys|dev)/' |
  while IFS= read -r f; do if [ -e "$f" ] || [ -L "$f" ]; then printf '%s\n' "${f#/}"; fi; done > "$list"
mkdir -p "$root"/{var/lib/dpkg/updates,var/lib/dpkg/info,var/lib/apt/lists/partial,var/cache/apt/archives/partial,tmp,proc,sys,dev,run,usr/local/bin}; chmod 1777 "$root/tmp"
tar -C / --no-recursion -cf - -T "$list" | tar -C "$root" -xf - ; rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -s /usr/bin/python3 "$root/usr/local/bin/python"; ln -s /usr/bin/python3 "$root/usr/local/bin/python3"; ln -s /usr/bin/pip3 "$root/usr/local/bin/pip"
# dpkg database of exactly these packages, so apt-get install works inside
dpkg-query -s $pk > "$root/var/lib/dpkg/status" || :
for p in $pk; do for q in "$p" "${p%%:*}"; do for s in list md5sums conffiles postinst prerm postrm preinst triggers shlibs symbols templates config; do [ -e "/var/lib/dpkg/info/$q.$s" ] && cp "/var/lib/dpkg/info/$q.$s" "$root/var/lib/dpkg/info/" || :; done; done; done
cp /var/lib/dpkg/info/format "$root/var/lib/dpkg/info/" 2>/dev/null || :
mkdir -p "$root/etc"; cp -a /etc/alternatives "$root/etc/"
mkdir -p "$root/var/lib/dpkg/alternatives"; cp -a /var/lib/dpkg/alternatives/. "$root/var/lib/dpkg/alternatives/"
tar -C "$root" -cf "$out" .
rm -rf "$root" "$list"
