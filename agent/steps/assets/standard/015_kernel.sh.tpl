# What containers and pods need of the kernel.
bb-event-on modules-changed 'for m in overlay br_netfilter; do modprobe -- "$m" || bb-log-warning "module $m is not here"; done'
bb-event-on sysctl-changed 'sysctl -q -p /etc/sysctl.d/90-slipway-kubernetes.conf || bb-log-warning "not every setting could be made"'
bb-sync-file /etc/modules-load.d/slipway-kubernetes.conf - modules-changed <<'END'
overlay
br_netfilter
END
bb-sync-file /etc/sysctl.d/90-slipway-kubernetes.conf - sysctl-changed <<'END'
net.ipv4.ip_forward = 1
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
vm.overcommit_memory = 1
kernel.panic = 10
kernel.panic_on_oops = 1
END
