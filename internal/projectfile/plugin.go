package projectfile

// Plugin is a reusable condition: the name of a file of plugins/, or a map.
type Plugin struct {
	Name   string        `yaml:",either" format:"plugin" doc:"Name of plugins/<name>.yaml."`
	Fields *PluginFields `yaml:",either"`
}

// PluginFields declare a plugin, or use that of a file with a key and a
// configuration of their own.
type PluginFields struct {
	Name     string         `yaml:"name" required:"true" format:"plugin" doc:"What it is; without setup and teardown the name of plugins/<name>.yaml."`
	Key      string         `yaml:"key" min:"1" doc:"Tells instances of one plugin apart."`
	Revision string         `yaml:"revision" min:"1" doc:"Behaviour of what the commands call; change it when results of before no longer hold."`
	With     map[string]any `yaml:"with" keys:"nonblank" doc:"Configuration; the commands find each entry in $PLUGIN_<NAME>."`
	Setup    []Command      `yaml:"setup" doc:"Commands once per sandbox, in order."`
	Teardown []Command      `yaml:"teardown" doc:"Commands once per sandbox, last first, always."`
}

// PluginFile is plugins/<name>.yaml.
type PluginFile struct {
	Description string         `yaml:"description" doc:"For people."`
	Revision    string         `yaml:"revision" min:"1" doc:"Behaviour of what the commands call; change it when results of before no longer hold."`
	With        map[string]any `yaml:"with" keys:"nonblank" doc:"Default configuration; the commands find each entry in $PLUGIN_<NAME>."`
	Setup       []Command      `yaml:"setup" doc:"Commands once per sandbox, in order."`
	Teardown    []Command      `yaml:"teardown" doc:"Commands once per sandbox, last first, always."`
}

// Rules says that a plugin does something.
func (PluginFile) Rules() []Rule { return []Rule{{AtLeastOne, []string{"setup", "teardown"}}} }
