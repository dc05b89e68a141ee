#!/bin/sh
# What the kernel runs outside, as root, for a key that it does not know.
readlink /proc/self/ns/net >/run/upcall
