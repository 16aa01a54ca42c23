package otlp

import (
	"encoding/hex"
	"errors"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

var errMalformed = errors.New("the message is no protobuf")

// Proto reads an ExportTraceServiceRequest (opentelemetry-proto 1.x,
// collector/trace/v1). Fields that are not known are skipped. At most limit
// spans are read; the others are counted in left.
func Proto(body []byte, limit int) (spans []Span, left int, err error) {
	err = fields(body, func(n protowire.Number, v value) error { // ExportTraceServiceRequest
		if n != 1 {
			return nil
		}
		return fields(v.bytes, func(n protowire.Number, v value) error { // ResourceSpans
			if n != 2 {
				return nil
			}
			return fields(v.bytes, func(n protowire.Number, v value) error { // ScopeSpans
				if n != 2 {
					return nil
				}
				if len(spans) >= limit {
					left++
					return nil
				}
				s, err := protoSpan(v.bytes)
				if err != nil {
					return err
				}
				if s.usable() {
					spans = append(spans, s)
				}
				return nil
			})
		})
	})
	return spans, left, err
}

// value is a field of any wire type.
type value struct {
	bytes []byte
	num   uint64
}

// fields visits the fields of a message. A field of an unexpected wire type has
// the other part of its value empty, which is the same as not being there.
func fields(b []byte, visit func(protowire.Number, value) error) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return errMalformed
		}
		b = b[size:]
		var v value
		switch typ {
		case protowire.BytesType:
			v.bytes, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			v.num, size = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v.num, size = protowire.ConsumeFixed64(b)
		default:
			size = protowire.ConsumeFieldValue(n, typ, b)
		}
		if size < 0 {
			return errMalformed
		}
		b = b[size:]
		if err := visit(n, v); err != nil {
			return err
		}
	}
	return nil
}

func protoSpan(b []byte) (Span, error) {
	var s Span
	err := fields(b, func(n protowire.Number, v value) error {
		switch n {
		case 1:
			s.Trace = id(v.bytes, 16)
		case 2:
			s.ID = id(v.bytes, 8)
		case 4:
			s.Parent = id(v.bytes, 8)
		case 5:
			s.Name = string(v.bytes[:min(len(v.bytes), maxName)])
		case 7:
			s.Start = instant(v.num)
		case 8:
			s.End = instant(v.num)
		case 9:
			return protoAttribute(&s, v.bytes)
		case 15:
			return fields(v.bytes, func(n protowire.Number, v value) error { // Status
				s.Failed = s.Failed || n == 3 && v.num == 2
				return nil
			})
		}
		return nil
	})
	return s, err
}

func protoAttribute(s *Span, b []byte) error {
	var key, text string
	err := fields(b, func(n protowire.Number, v value) error { // KeyValue
		switch n {
		case 1:
			key = string(v.bytes[:min(len(v.bytes), maxName)])
		case 2:
			return fields(v.bytes, func(n protowire.Number, v value) error { // AnyValue
				switch n {
				case 1:
					text = string(v.bytes[:min(len(v.bytes), maxValue)])
				case 2:
					text = strconv.FormatBool(v.num != 0)
				case 3:
					text = strconv.FormatInt(int64(v.num), 10)
				case 4:
					text = strconv.FormatFloat(math.Float64frombits(v.num), 'g', -1, 64)
				}
				return nil
			})
		}
		return nil
	})
	s.attribute(key, text)
	return err
}

// id is an identifier in hex, or "" for one that is not there or invalid.
func id(b []byte, size int) string {
	if len(b) != size {
		return ""
	}
	for _, c := range b {
		if c != 0 {
			return hex.EncodeToString(b)
		}
	}
	return ""
}
