//! A pure model of grub.cfg's slot choice.
