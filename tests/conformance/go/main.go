// Renders the conformance cases with Go's own text/template and sprig and prints the expected outputs as JSON.
// Usage: go run . ../context.json ../cases.json > ../expected.json
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"gopkg.in/yaml.v3"
)

type testCase struct {
	Name     string `json:"name"`
	Template string `json:"template"`
}

type result struct {
	Output string `json:"output"`
	Error  bool   `json:"error,omitempty"`
}

func functions(t *template.Template, root interface{}) template.FuncMap {
	f := sprig.TxtFuncMap()
	delete(f, "env")
	delete(f, "expandenv")
	f["toYaml"] = func(v interface{}) (string, error) {
		var b bytes.Buffer
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		err := e.Encode(v)
		return strings.TrimSuffix(b.String(), "\n"), err
	}
	f["fromYaml"] = func(s string) (map[string]interface{}, error) {
		m := map[string]interface{}{}
		err := yaml.Unmarshal([]byte(s), &m)
		return m, err
	}
	f["required"] = func(message string, v interface{}) (interface{}, error) {
		if s, ok := v.(string); v == nil || (ok && s == "") {
			return v, fmt.Errorf("%s", message)
		}
		return v, nil
	}
	f["tpl"] = func(s string, _ interface{}) (string, error) {
		c, err := t.Clone()
		if err != nil {
			return "", err
		}
		p, err := c.New("tpl").Parse(s)
		if err != nil {
			return "", err
		}
		var b bytes.Buffer
		err = p.Execute(&b, root)
		return b.String(), err
	}
	return f
}

func render(text string, root interface{}) (out string, err error) {
	t := template.New("case")
	t.Funcs(functions(t, root))
	if _, err = t.Parse(text); err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = t.Execute(&b, root)
	return b.String(), err
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	raw, err := os.ReadFile(os.Args[1])
	must(err)
	list, err := os.ReadFile(os.Args[2])
	must(err)
	var cases []testCase
	must(json.Unmarshal(list, &cases))
	results := map[string]result{}
	for _, c := range cases {
		// Fresh for each case: set and merge change what they are given.
		var root map[string]interface{}
		must(json.Unmarshal(raw, &root))
		out, err := render(c.Template, root)
		if err != nil {
			results[c.Name] = result{Error: true}
			fmt.Fprintf(os.Stderr, "%s: %v\n", c.Name, err)
		} else {
			results[c.Name] = result{Output: out}
		}
	}
	text, err := json.MarshalIndent(results, "", " ")
	must(err)
	fmt.Println(string(text))
}
