#!/usr/bin/env bash
# Fetches the data of the trials from Debian packages, without installing them:
#
#     bash examples/torch/trials/data.sh FOLDER
#
# FOLDER/text gets the King James Bible (public domain) and the GNU Collaborative International
# Dictionary of English, FOLDER/images photographs of mate-backgrounds, and FOLDER/frames a clip of
# opencv-doc. Needs Debian's apt-get, and ffmpeg for the clip.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../../tests/support/setup.sh"

folder=${1:?a folder for the data}
mkdir -p "$folder"/{text,images} "$folder/packages/frames"
folder=$(cd "$folder" && pwd)
require_packages ffmpeg
as_root=()
((EUID == 0)) || as_root=(sudo)
cd "$folder/packages"
for name in bible-kjv bible-kjv-text dict-gcide mate-backgrounds opencv-doc; do
  [[ -d $name ]] && continue
  step "fetch $name"
  apt-get download -q "$name" >&2 || {
    step "update the list of packages"
    "${as_root[@]}" apt-get update -q >&2
    apt-get download -q "$name" >&2
  }
  dpkg-deb -x "$name"_*.deb "$name.part"
  mv "$name.part" "$name"
  rm "$name"_*.deb
done
step "unpack the text, the photographs and the clip"
bible-kjv/usr/bin/bible -p bible-kjv-text/usr/lib -l79 gen1:1-rev22:21 </dev/null \
  >"$folder/text/bible.txt"
cp dict-gcide/usr/share/dictd/gcide.dict.dz "$folder/text/"
cp mate-backgrounds/usr/share/backgrounds/mate/nature/*.jpg "$folder/images/"
gunzip -c opencv-doc/usr/share/doc/opencv-doc/opencv4/html/box.mp4.gz >box.mp4
ffmpeg -loglevel fatal -y -i box.mp4 -vf scale=192:144:flags=area frames/%04d.png \
  </dev/null
rm -rf "$folder/frames"
mv frames "$folder/"  # last: data with frames is complete
rm -r "$folder/packages"
step "written: $folder"
