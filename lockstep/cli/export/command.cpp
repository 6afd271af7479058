#include "lockstep/cli/export/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "lockstep/cli/commands.h"
#include "lockstep/cli/export/python.h"
#include "lockstep/cli/libtorch_choice.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/log.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::cli {
namespace {

struct ExportFlags {
  std::string checkpoint, format, output, twin, python;
  std::vector<std::string> inputs;
  bool check = false, force = false, help = false;
};

class ExportParser {
 public:
  explicit ExportParser(ExportFlags& flags)
      : app_(
            "Writes a checkpoint's model as a file that ONNX Runtime or PyTorch opens. A Python with torch does it.",
            "lockstep export") {
    app_.set_help_flag();
    app_.footer(
        "The checkpoint is a training run's output folder, one of its checkpoints, a folder of Hugging Face's with "
        "safetensors, or, with --twin, a safetensors file. No pickle is read.\n"
        "Exit code: 0; 2 for a wrong flag or a model that cannot be exported; 1 otherwise.");
    add_example(app_, {"lockstep export runs/mnist --to onnx --check"});
    app_.add_option("checkpoint", flags.checkpoint, "What to export")->type_name("CHECKPOINT");
    app_.add_option("--to", flags.format,
                    "(required) ONNX, the file of torch.export, or that of torch.jit")
        ->type_name("onnx|pt2|torchscript")
        ->check(CLI::IsMember({"onnx", "pt2", "torchscript"}));
    app_.add_option("--output", flags.output,
                    "Where to write [the checkpoint's name, in this folder]")
        ->type_name("FILE");
    app_.add_option(
            "--twin", flags.twin,
            "A model of your own: a Python file whose make() gives its PyTorch twin, such as "
            "lockstep::module_to_python() writes; the file is executed")
        ->type_name("FILE");
    app_.add_option(
            "--input", flags.inputs,
            "With --twin, once for each input: its name, type and axes, such as x=float32:batch,3,32,32")
        ->type_name("NAME=DTYPE:AXES")
        ->allow_extra_args(false);
    app_.add_flag(
        "--check", flags.check,
        "Compute with the new file and with the twin, and compare, before it gets its name");
    app_.add_flag("--force", flags.force, "Replace an existing file");
    app_.add_option(
            "--python", flags.python,
            "The Python to start [that of the libtorch in use, or the first one whose torch fits]")
        ->type_name("PATH");
    app_.add_flag("--help,-h", flags.help, "This text");
  }

  void parse(const std::vector<std::string>& words) { parse_options(app_, words); }
  std::string help() const { return help_of(app_, help_width()); }
  OptionTable table() const { return table_of(app_); }

 private:
  CLI::App app_;
};

// In a build tree; nullopt: installed.
std::optional<BuiltWith> built_with(const std::filesystem::path& program) {
  const std::filesystem::path file = program / "built-with";
  if (!std::filesystem::exists(file)) return std::nullopt;
  std::istringstream text(read_named_file(file));
  BuiltWith built;
  std::string torch;
  std::getline(text, built.version);
  std::getline(text, torch);
  built.torch = torch;
  return built;
}

std::vector<std::string> minors_built(const std::filesystem::path& lockstep,
                                      const std::optional<BuiltWith>& built) {
  if (built) return {minor_of(built->version)};
  std::vector<std::string> minors;
  for (const TorchBuild& build :
       torch_builds(lockstep.parent_path().parent_path(), "lockstep-engine"))
    minors.push_back(build.minor);
  return minors;
}

std::filesystem::path python_for(const ExportFlags& flags, const std::filesystem::path& lockstep,
                                 const std::optional<BuiltWith>& built) {
  const auto minors = minors_built(lockstep, built);
  if (minors.empty())
    throw InvalidArgument(
        "lockstep-engine is missing, which says for which torch Lockstep is built; " +
        how_to_build(lockstep, "lockstep-engine"));
  std::vector<FoundPython> found;
  const bool named = !flags.python.empty();
  const auto places = named ? std::vector<std::filesystem::path>{find_program(flags.python)}
                            : python_places(lockstep, built, process_env());
  for (const auto& place : places) {
    found.push_back({place, torch_version_of(place)});
    if (const auto chosen = choose_python({found.back()}, minors)) return chosen->program;
  }
  throw InvalidArgument(no_python(found, minors, named));
}

std::vector<std::string> python_command(const ExportFlags& flags, const std::string& python,
                                        const std::string& program) {
  // -B: nothing is left in the installation.
  std::vector<std::string> words{python, "-B", program, "--to=" + flags.format};
  if (!flags.output.empty()) words.push_back("--output=" + flags.output);
  if (!flags.twin.empty()) words.push_back("--twin=" + flags.twin);
  for (const std::string& input : flags.inputs) words.push_back("--input=" + input);
  if (flags.check) words.emplace_back("--check");
  if (flags.force) words.emplace_back("--force");
  words.emplace_back("--");
  words.push_back(flags.checkpoint);
  return words;
}

}  // namespace

int export_command(const std::vector<std::string>& arguments) {
  ExportFlags flags;
  ExportParser parser(flags);
  for (const std::string& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    write_stdout(help_output(parser.table(), parser.help()));
    return 0;
  }
  parser.parse(arguments);
  if (flags.checkpoint.empty())
    throw UsageError("CHECKPOINT is required; see lockstep export --help");
  if (flags.format.empty()) throw UsageError("--to is required: onnx, pt2 or torchscript");
  if (!flags.inputs.empty() && flags.twin.empty())
    throw UsageError("--input is of --twin; the inputs of Lockstep's own models are known");
  const auto lockstep = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path program = program_path(lockstep, "export");
  if (!std::filesystem::exists(program / "__main__.py"))
    throw InvalidArgument(program.string() + " is missing; " + how_to_build(lockstep, "lockstep"));
  const std::filesystem::path python = python_for(flags, lockstep, built_with(program));
  const auto words = python_command(flags, python.string(), program.string());
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execv(python.c_str(), argv.data());
  throw system_error("cannot start " + python.string(), errno);
}

std::string export_help() {
  ExportFlags flags;
  return ExportParser(flags).help();
}

OptionTable export_table() {
  ExportFlags flags;
  return ExportParser(flags).table();
}

}  // namespace lockstep::inline v0::cli
