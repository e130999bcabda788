#!/bin/sh
# Sourced by dracut as its first step: a kernel that panics from here on leaves its last lines in the firmware's memory.
# ramoops does nothing without a region on the command line (ramoops.mem_address=, ramoops.mem_size=) or in the device tree.
modprobe -q efi_pstore
modprobe -q ramoops
:
