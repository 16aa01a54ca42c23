package wire

import (
	"encoding/binary"
	"fmt"
)

// Message is a control message. Fields visits every field in order, once, and
// serves both directions, so that encoder and decoder cannot disagree.
type Message interface{ Fields(c *Codec) }

// Codec writes fields to a buffer or reads them back. Strings are exact bytes:
// names that are not UTF-8 survive. The first error sticks.
type Codec struct {
	buf     []byte
	reading bool
	err     error
}

// Marshal returns the encoding of m.
func Marshal(m Message) []byte {
	c := Codec{}
	m.Fields(&c)
	return c.buf
}

// Unmarshal decodes b into m. Missing and left-over bytes are errors that wrap
// ErrProtocol.
func Unmarshal(b []byte, m Message) error {
	c := Codec{buf: b, reading: true}
	m.Fields(&c)
	if c.err == nil && len(c.buf) > 0 {
		c.fail("left-over bytes")
	}
	return c.err
}

func (c *Codec) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: message: %s", ErrProtocol, what)
	}
	c.buf = nil
}

// Int visits a signed number.
func (c *Codec) Int(p *int64) {
	if !c.reading {
		c.buf = binary.AppendVarint(c.buf, *p)
		return
	}
	v, n := binary.Varint(c.buf)
	if n <= 0 {
		c.fail("bad number")
		return
	}
	*p, c.buf = v, c.buf[n:]
}

// Num visits an int.
func (c *Codec) Num(p *int) {
	v := int64(*p)
	c.Int(&v)
	*p = int(v)
}

// ID visits a user or group id or another 32-bit number.
func (c *Codec) ID(p *uint32) {
	v := int64(*p)
	c.Int(&v)
	if v < 0 || v > 1<<32-1 {
		c.fail("number out of range")
		return
	}
	*p = uint32(v)
}

// Bool visits a flag.
func (c *Codec) Bool(p *bool) {
	v := int64(0)
	if *p {
		v = 1
	}
	c.Int(&v)
	*p = v != 0
}

// Str visits a string of any bytes.
func (c *Codec) Str(p *string) {
	n := len(*p)
	c.Num(&n)
	if !c.reading {
		c.buf = append(c.buf, *p...)
		return
	}
	if n < 0 || n > len(c.buf) {
		c.fail("bad length")
		return
	}
	*p, c.buf = string(c.buf[:n]), c.buf[n:]
}

// Strs visits a list of strings.
func (c *Codec) Strs(p *[]string) { List(c, p, (*Codec).Str) }

// IDs visits a list of ids.
func (c *Codec) IDs(p *[]uint32) { List(c, p, (*Codec).ID) }

// List visits a list whose items are visited by item. A nil list stays nil.
func List[T any](c *Codec, p *[]T, item func(*Codec, *T)) {
	n := len(*p)
	c.Num(&n)
	if c.reading {
		// Each item takes a byte at least, so a length beyond the rest of the
		// message is a lie, and the check bounds what is allocated.
		if n < 0 || n > len(c.buf) {
			c.fail("bad count")
			return
		}
		*p = nil
		if n > 0 {
			*p = make([]T, n)
		}
	}
	for i := range *p {
		item(c, &(*p)[i])
		if c.err != nil {
			return
		}
	}
}
