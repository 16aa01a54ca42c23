package fake

import (
	"errors"
	"regexp"
	"slices"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"
)

func (s *shell) cond(stmts []*syntax.Stmt) int {
	s.guard++
	defer func() { s.guard-- }()
	return s.list(stmts)
}

func (s *shell) ifClause(c *syntax.IfClause) int {
	for ; c != nil; c = c.Else {
		if len(c.Cond) == 0 { // else
			return s.list(c.Then)
		}
		code := s.cond(c.Cond)
		if s.flow != goOn {
			return code
		}
		if code == 0 {
			return s.list(c.Then)
		}
	}
	return 0
}

// loop ends one turn of a loop and reports whether there is another.
func (s *shell) loop() bool {
	switch s.flow {
	case goOn:
		return s.alive()
	case breaking, continuing:
		if s.levels--; s.levels > 0 {
			return false
		}
		again := s.flow == continuing
		s.flow = goOn
		return again && s.alive()
	default:
		return false
	}
}

func (s *shell) whileClause(c *syntax.WhileClause) int {
	s.loops++
	defer func() { s.loops-- }()
	code := 0
	for {
		ok := s.cond(c.Cond) == 0
		if s.flow != goOn {
			if !s.loop() {
				return code
			}
			continue
		}
		if ok == c.Until {
			return code
		}
		code = s.list(c.Do)
		if !s.loop() {
			return code
		}
	}
}

func (s *shell) forClause(c *syntax.ForClause) int {
	if c.Select {
		return s.refuse("select is not supported")
	}
	s.loops++
	defer func() { s.loops-- }()
	code := 0
	switch l := c.Loop.(type) {
	case *syntax.WordIter:
		items := s.params
		if l.InPos.IsValid() {
			var err error
			if items, err = expand.Fields(s.config(), l.Items...); err != nil {
				return s.expandError(err)
			}
		}
		for _, item := range slices.Clone(items) {
			if err := s.Set(l.Name.Value, expand.Variable{Set: true, Kind: expand.String, Str: item}); err != nil {
				return s.expandError(err)
			}
			code = s.list(c.Do)
			if !s.loop() {
				break
			}
		}
	case *syntax.CStyleLoop:
		if l.Init != nil {
			s.arithm(l.Init)
		}
		for l.Cond == nil || s.arithm(l.Cond) == 0 {
			code = s.list(c.Do)
			if !s.loop() {
				break
			}
			if l.Post != nil {
				s.arithm(l.Post)
			}
		}
	}
	return code
}

func (s *shell) expandError(err error) int {
	s.errorf("%v", err)
	var unset expand.UnsetParameterError
	if errors.As(err, &unset) {
		s.flow = exiting
	}
	s.last = 1
	return 1
}

func matches(pat, str string) bool {
	expr, err := pattern.Regexp(pat, pattern.EntireString)
	if err != nil {
		return pat == str
	}
	re, err := regexp.Compile(expr)
	return err == nil && re.MatchString(str)
}

func (s *shell) caseClause(c *syntax.CaseClause) int {
	word, err := expand.Literal(s.config(), c.Word)
	if err != nil {
		return s.expandError(err)
	}
	fall := false
	code := 0
	for _, item := range c.Items {
		hit := fall
		for _, p := range item.Patterns {
			if hit {
				break
			}
			pat, err := expand.Pattern(s.config(), p)
			if err != nil {
				return s.expandError(err)
			}
			hit = matches(pat, word)
		}
		if !hit {
			continue
		}
		code = s.list(item.Stmts)
		switch item.Op {
		case syntax.Fallthrough:
			fall = true
		case syntax.Resume:
			fall = false
		default:
			return code
		}
	}
	return code
}
