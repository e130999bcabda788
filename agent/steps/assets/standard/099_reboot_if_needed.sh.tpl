# agent: phase=late
# Something that was installed works only after a restart. The runner asks for it and the node's policy decides when.
for sign in /run/reboot-required /var/run/reboot-required; do
  if [[ -e $sign ]]; then
    bb-log-info "$sign is there"
    bb-flag-set reboot
    exit 0
  fi
done
