package lane

import (
	"encoding/binary"
	"fmt"
)

// maxSettings bounds one SETTINGS frame, in bytes: 170 settings.
const maxSettings = 1 << 10

func (c *Conn) settings(f frame, payload []byte) error {
	switch {
	case f.stream != 0:
		return protocolError("SETTINGS on stream %d", f.stream)
	case f.length%6 != 0 || f.has(flagAck) && f.length > 0:
		return &ConnError{FrameSizeError, CauseProtocol, fmt.Sprintf("SETTINGS of %d bytes", f.length)}
	case f.has(flagAck):
		return c.spend(costUnknown)
	case f.length > maxSettings:
		return &ConnError{EnhanceYourCalm, CauseFlood, "SETTINGS is too large"}
	}
	c.greeted = true
	old, most := c.peer.window, int64(0)
	for ; len(payload) > 0; payload = payload[6:] {
		if err := c.setting(binary.BigEndian.Uint16(payload), binary.BigEndian.Uint32(payload[2:])); err != nil {
			return err
		}
		most = max(most, c.peer.window)
	}
	if err := c.moveWindows(c.peer.window-old, most-old); err != nil {
		return err
	}
	c.out = appendFrame(c.out, 0, frameSettings, flagAck, 0)
	c.flushAll()
	return c.spend(costSettings)
}

func (c *Conn) setting(id uint16, value uint32) error {
	switch id {
	case settingTableSize: // this encoder uses no table, but must say so after a reduction: RFC 9113, section 4.3.1
		c.peer.tableUpdate = c.peer.tableUpdate || value < c.peer.tableSize
		c.peer.tableSize = value
	case settingPush:
		if value > 1 {
			return protocolError("SETTINGS_ENABLE_PUSH %d", value)
		}
	case settingWindow:
		if value > maxWindow {
			return &ConnError{FlowControlError, CauseProtocol, "SETTINGS_INITIAL_WINDOW_SIZE is above 2^31-1"}
		}
		c.peer.window = int64(value)
	case settingMaxFrame:
		if value < maxFrame || value > 1<<24-1 {
			return protocolError("SETTINGS_MAX_FRAME_SIZE %d", value)
		}
		c.peer.maxFrame = int(value)
	case settingMaxHeaderList:
		c.peer.maxHeaderList = value
	}
	return nil
}

// moveWindows adds bytes to the windows of all streams, once for all settings of a frame: a frame
// may have 170 of them. most is the largest change on the way, which must be allowed too.
func (c *Conn) moveWindows(by, most int64) error {
	if by == 0 && most <= 0 {
		return nil
	}
	for _, s := range c.opened.byID {
		if s.sendWindow+most > maxWindow {
			return &ConnError{FlowControlError, CauseProtocol, "SETTINGS_INITIAL_WINDOW_SIZE makes a window larger than 2^31-1"}
		}
		s.sendWindow += by
	}
	return nil
}
