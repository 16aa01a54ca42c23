package otlp

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
)

// JSON reads an ExportTraceServiceRequest in OTLP's own JSON: ids are hex, not
// base 64, 64-bit numbers are numbers or texts, enums are numbers. At most limit
// spans are read; the others are counted in left.
func JSON(body []byte, limit int) (spans []Span, left int, err error) {
	var doc struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []json.RawMessage `json:"spans"`
			} `json:"scopeSpans"`
		} `json:"resourceSpans"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, 0, err
	}
	for _, r := range doc.ResourceSpans {
		for _, sc := range r.ScopeSpans {
			for _, raw := range sc.Spans {
				if len(spans) >= limit {
					left++
					continue
				}
				s, err := jsonSpan(raw)
				if err != nil {
					return spans, left, err
				}
				if s.usable() {
					spans = append(spans, s)
				}
			}
		}
	}
	return spans, left, nil
}

// loose is a 64-bit number as a number or as text.
type loose string

func (l *loose) UnmarshalJSON(b []byte) error {
	*l = loose(strings.Trim(string(b), `"`))
	return nil
}

func (l loose) instant() uint64 {
	n, err := strconv.ParseUint(string(l), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func jsonSpan(raw json.RawMessage) (Span, error) {
	var in struct {
		Trace      string `json:"traceId"`
		ID         string `json:"spanId"`
		Parent     string `json:"parentSpanId"`
		Name       string `json:"name"`
		Start      loose  `json:"startTimeUnixNano"`
		End        loose  `json:"endTimeUnixNano"`
		Attributes []struct {
			Key   string                     `json:"key"`
			Value map[string]json.RawMessage `json:"value"`
		} `json:"attributes"`
		Status struct {
			Code json.RawMessage `json:"code"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return Span{}, err
	}
	s := Span{
		Trace: hexID(in.Trace, 16), ID: hexID(in.ID, 8), Parent: hexID(in.Parent, 8), Name: in.Name,
		Start: instant(in.Start.instant()), End: instant(in.End.instant()),
		Failed: string(in.Status.Code) == "2" || string(in.Status.Code) == `"STATUS_CODE_ERROR"`,
	}
	for _, a := range in.Attributes {
		for _, kind := range []string{"stringValue", "boolValue", "intValue", "doubleValue"} {
			v, ok := a.Value[kind]
			if !ok {
				continue
			}
			var text string
			if json.Unmarshal(v, &text) != nil {
				text = string(v)
			}
			s.attribute(a.Key, text)
		}
	}
	return s, nil
}

func hexID(s string, size int) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		return ""
	}
	return id(b, size)
}
