#include "lockstep/cli/engine/diff/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/tensor_file.h"
#include "lockstep/cli/engine/diff/run_diff.h"
#include "lockstep/cli/engine/diff/tensor_diff.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/utf8.h"
#include "lockstep/report/metrics_file.h"
#include "lockstep/report/table.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
using Kind = TensorDifference::Kind;

struct DiffArguments {
  std::string a, b, json;
  double tolerance = 0;
};

std::string three_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

bool is_run(const fs::path& path) {
  return fs::exists(RunFolder{path}.metrics());
}

void append(NamedTensors* all, const std::string& prefix, const Safetensors& part) {
  for (const auto& [name, tensor] : part.tensors) all->emplace_back(prefix + name, tensor);
}

// Reads all tensors of a checkpoint; those that are not the model's have the name of their file
// before their own.
NamedTensors tensors_of(const fs::path& given) {
  const fs::path path = checkpoint_meant(given);
  const bool trained = checkpoint_exists(path) && fs::exists(path / "trainer.json");
  if (!trained) return read_tensor_file(path).contents.tensors;
  const Checkpoint checkpoint = read_checkpoint(path);
  NamedTensors all;
  append(&all, "", checkpoint.model);
  append(&all, "optimizer/", checkpoint.optimizer.whole());
  append(&all, "ranks/", checkpoint.ranks);
  for (const auto& [name, part] : checkpoint.tensors) append(&all, name + "/", part);
  return all;
}

Json to_json(const TensorDifference& difference) {
  Json json{{"name", difference.name}, {"kind", to_string(difference.kind)}};
  if (!difference.a.empty()) {
    json["a"] = difference.a;
    json["b"] = difference.b;
  }
  if (difference.kind == Kind::kValues || difference.kind == Kind::kDtype) {
    json["elements"] = difference.elements;
    json["different"] = difference.different;
    json["max_abs"] = difference.max_abs;
    json["max_rel"] = difference.max_rel;
  }
  return json;
}

Json to_json(const TensorsDiff& diff) {
  Json list = Json::array();
  for (const TensorDifference& difference : diff.differences) list.push_back(to_json(difference));
  return {{"compared", diff.compared},
          {"different", diff.differences.size()},
          {"max_abs", diff.max_abs},
          {"max_rel", diff.max_rel},
          {"differences", list}};
}

Json to_json(const RunsDiff& diff) {
  Json json{{"records", diff.records}, {"different", diff.different}, {"first", nullptr}};
  if (diff.first) {
    json["first"] = {{"step", diff.first->step},
                     {"type", diff.first->type},
                     {"key", diff.first->key},
                     {"a", diff.first->a},
                     {"b", diff.first->b}};
  }
  return json;
}

std::string what_differs(const TensorDifference& difference) {
  switch (difference.kind) {
    case Kind::kMissingInA:
      return "missing in A";
    case Kind::kMissingInB:
      return "missing in B";
    case Kind::kShape:
      return "shape " + difference.a + " and " + difference.b;
    case Kind::kDtype:
      return difference.a + " and " + difference.b;
    default:
      return "values";
  }
}

void print(const TensorsDiff& diff, const std::string& title) {
  std::cout << title << ": ";
  if (diff.differences.empty()) {
    std::cout << diff.compared << " tensors, all equal\n";
    return;
  }
  std::cout << diff.differences.size() << " tensors differ, the first is "
            << printable(diff.differences[0].name) << "; " << diff.compared << " are in both";
  if (diff.max_abs > 0) {
    std::cout << " and differ by at most " << three_digits(diff.max_abs) << " (relative "
              << three_digits(diff.max_rel) << ')';
  }
  std::cout << '\n';
  Table table({{"tensor", Align::kLeft},
               {"differs in", Align::kLeft},
               {"elements"},
               {"of"},
               {"greatest"},
               {"relative"}});
  constexpr size_t kMost = 20;
  for (size_t i = 0; i < std::min(diff.differences.size(), kMost); ++i) {
    const TensorDifference& difference = diff.differences[i];
    const bool values = difference.elements > 0;
    table.add({difference.name, what_differs(difference),
               values ? std::to_string(difference.different) : "",
               values ? std::to_string(difference.elements) : "",
               values ? three_digits(difference.max_abs) : "",
               values ? three_digits(difference.max_rel) : ""});
  }
  std::cout << table.str();
  if (diff.differences.size() > kMost)
    std::cout << "and " << diff.differences.size() - kMost << " more, see --json\n";
}

void print(const RunsDiff& diff) {
  if (!diff.first) {
    std::cout << "metrics.jsonl: " << diff.records << " records, all equal\n";
    return;
  }
  const RunDifference& first = *diff.first;
  const std::string record = first.type.empty() ? "" : printable(first.type) + " ";
  std::cout << "metrics.jsonl: first difference at step " << first.step << ": ";
  if (first.key.empty())
    std::cout << "only " << (first.a.is_null() ? "B" : "A") << " has a " << record << "record\n";
  else
    std::cout << record << printable(first.key) << " is " << shown(first.a) << " and "
              << shown(first.b) << '\n';
  std::cout << diff.different << " records differ, " << diff.records << " are in both\n";
}

// Returns whether they are equal, and adds the result to the JSON.
bool compare_tensors(const fs::path& a, const fs::path& b, const std::string& title,
                     double tolerance, Json* json) {
  const TensorsDiff diff = diff_tensors(tensors_of(a), tensors_of(b), tolerance);
  print(diff, title);
  (*json)["tensors"] = to_json(diff);
  return diff.differences.empty();
}

bool compare_runs(const DiffArguments& arguments, Json* json) {
  const RunFolder a{arguments.a}, b{arguments.b};
  const RunsDiff metrics =
      diff_metrics(read_metrics(a.metrics()), read_metrics(b.metrics()), arguments.tolerance);
  print(metrics);
  (*json)["metrics"] = to_json(metrics);
  bool equal = !metrics.first;
  if (checkpoint_exists(a.last()) && checkpoint_exists(b.last())) {
    equal =
        compare_tensors(a.last(), b.last(), "checkpoints/last", arguments.tolerance, json) && equal;
  }
  return equal;
}

}  // namespace

int diff_command(const Arguments& words) {
  return run_guarded("diff", [&] {
    CLI::App app(
        "Where two training runs part (the first step and value of metrics.jsonl that differ, and "
        "the tensors of their last checkpoints), or two checkpoints or files of tensors. Exit code "
        "0: equal, 1: different, 2: bad input.",
        "lockstep diff");
    DiffArguments arguments;
    app.add_option("A", arguments.a, "a run's output directory, a checkpoint, .safetensors or .pt")
        ->required()
        ->type_name("PATH");
    app.add_option("B", arguments.b, "another one")->required()->type_name("PATH");
    app.add_option("--tolerance", arguments.tolerance,
                   "values are equal if |a-b| <= this times max(1, |a|, |b|) [0]");
    app.add_option("--json", arguments.json, "also write the result to this file")
        ->type_name("FILE");
    cli::add_example(app, {"lockstep diff runs/one runs/other"});
    parse(app, words);
    if (!(arguments.tolerance >= 0)) throw InvalidArgument("--tolerance: give 0 or more");
    check_result_files({arguments.json});
    for (const std::string& path : {arguments.a, arguments.b}) {
      if (!fs::exists(checkpoint_meant(path))) throw InvalidArgument(path + " does not exist");
    }
    const bool runs = is_run(arguments.a);
    if (runs != is_run(arguments.b)) {
      throw InvalidArgument((runs ? arguments.a : arguments.b) +
                            " is a training run and the other is not; give two runs, or two "
                            "checkpoints");
    }
    Json json{{"a", arguments.a},
              {"b", arguments.b},
              {"kind", runs ? "runs" : "tensors"},
              {"tolerance", arguments.tolerance},
              {"equal", false}};
    const bool equal =
        runs ? compare_runs(arguments, &json)
             : compare_tensors(arguments.a, arguments.b, "tensors", arguments.tolerance, &json);
    json["equal"] = equal;
    write_json(arguments.json, json);
    std::cout << std::flush;
    return equal ? 0 : 1;
  });
}

}  // namespace lockstep::inline v0::engine
