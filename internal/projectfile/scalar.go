package projectfile

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// resolve gives a plain scalar its kind and normal text by the core schema of
// YAML 1.2.2, section 10.3.2: "yes" and "012" are what they look like, text and
// the number twelve.
func resolve(s string) (Kind, string) {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return Null, ""
	case "true", "True", "TRUE":
		return Bool, "true"
	case "false", "False", "FALSE":
		return Bool, "false"
	}
	if c := s[0]; c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') {
		return Text, s
	}
	switch {
	case isInt(s):
		return Int, s
	case isFloat(s):
		return Float, s
	default:
		return Text, s
	}
}

func isInt(s string) bool {
	if rest, ok := strings.CutPrefix(s, "0o"); ok {
		return rest != "" && strings.Trim(rest, "01234567") == ""
	}
	if rest, ok := strings.CutPrefix(s, "0x"); ok {
		return rest != "" && strings.Trim(rest, "0123456789abcdefABCDEF") == ""
	}
	if s[0] == '-' || s[0] == '+' {
		s = s[1:]
	}
	return s != "" && strings.Trim(s, "0123456789") == ""
}

var floatShape = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)

func isFloat(s string) bool {
	switch strings.TrimLeft(s, "+-") {
	case ".inf", ".Inf", ".INF":
		return len(s) <= 5
	case ".nan", ".NaN", ".NAN":
		return len(s) == 4
	}
	return floatShape.MatchString(s)
}

func parseInt(s string) (int64, error) {
	switch {
	case strings.HasPrefix(s, "0o"):
		return strconv.ParseInt(s[2:], 8, 64)
	case strings.HasPrefix(s, "0x"):
		return strconv.ParseInt(s[2:], 16, 64)
	default:
		return strconv.ParseInt(s, 10, 64)
	}
}

func parseFloat(s string) (float64, error) {
	f, err := strconv.ParseFloat(strings.TrimPrefix(s, "+"), 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return 0, errors.New("no finite number")
	}
	return f, nil
}

// MaxDuration is the longest limit that a file can set: ten years.
const MaxDuration = 10 * 365 * 24 * time.Hour

const durationPattern = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`

// parseDuration reads a Go duration that is more than zero.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-"):
		return 0, fmt.Errorf("%q is no duration", s)
	case d <= 0:
		return 0, fmt.Errorf("%q is no time at all", s)
	case d > MaxDuration:
		return 0, fmt.Errorf("%q is more than ten years", s)
	}
	return d, nil
}

const sizePattern = `^[1-9][0-9]{0,11}(KiB|MiB|GiB|TiB)$`

var sizeShape = regexp.MustCompile(sizePattern)

// parseSize reads a size such as "512MiB" as bytes.
func parseSize(s string) (int64, error) {
	if !sizeShape.MatchString(s) {
		return 0, fmt.Errorf("%q is no size", s)
	}
	n, err := strconv.ParseInt(s[:len(s)-3], 10, 64)
	if err != nil {
		return 0, err
	}
	shift := map[byte]uint{'K': 10, 'M': 20, 'G': 30, 'T': 40}[s[len(s)-3]]
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is more than can be counted", s)
	}
	return n << shift, nil
}
