package redisstore

import "strings"

// slots is the number of slots of a cluster.
const slots = 16384

// slotOf returns the slot of a Redis key: of the text between the first { and the next }, or
// without such a text of the whole key. See the Redis cluster specification.
func slotOf(key string) uint16 {
	if tag := tagOf(key); tag != "" {
		key = tag
	}
	return crc16(key) % slots
}

// tagOf returns the text of a Redis key that decides its slot; empty: the whole key does.
func tagOf(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed {
			return tag
		}
	}
	return ""
}

// crc16 is CRC-16/XMODEM: polynomial 0x1021, initially 0.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			crc = crc<<1 ^ crc>>15*0x1021
		}
	}
	return crc
}

// tagsOfSlots returns for each slot of a cluster a text that lies in the slot.
func tagsOfSlots() *[slots][3]byte {
	var tags [slots][3]byte
	for n := range 1 << 18 { // six bits of each letter from 0 to o
		tag := [3]byte{'0' + byte(n>>12), '0' + byte(n>>6&63), '0' + byte(n&63)}
		tags[slotOf(string(tag[:]))] = tag
	}
	return &tags
}
