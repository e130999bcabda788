# Programs that packages bring are in /opt/bin: the image's own directories are read-only.
mkdir -p /opt/bin
bb-sync-file /etc/profile.d/slipway-opt-bin.sh - <<'END'
case ":$PATH:" in
  *:/opt/bin:*) ;;
  *) PATH=$PATH:/opt/bin ;;
esac
END
