#include "lockstep/cli/engine/compare/programs.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "lockstep/bench/rows.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/named_file.h"
#include "lockstep/data/sentences.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/launch/agent.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

Arguments command_of(const ComparedProgram& program, const ComparedJob& job,
                     const ProgramsArguments& arguments, const std::string& lockstep) {
  const std::string nproc = std::to_string(job.nproc);
  Arguments command;
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty()) command.insert(command.end(), {option, value});
  };
  if (program.on_ranks) command = {lockstep, "run", "--nproc-per-node", nproc};
  command.push_back((fs::path(arguments.folder) / program.name).string());
  add("--data", arguments.data);
  add("--vocab", arguments.vocab);
  add("--model", arguments.model);
  add("--recipe", arguments.recipe);
  command.insert(command.end(), arguments.passed.begin(), arguments.passed.end());
  if (program.takes_amp) add("--amp", arguments.amp);
  if (program.takes_nproc) add("--nproc", nproc);
  add("--output", job.folder.string());
  add("--json", job.result().string());
  return command;
}

std::vector<ComparedProgram> programs_of(const ProgramsArguments& arguments) {
  const fs::path list = fs::path(arguments.folder) / "programs.json";
  if (!fs::exists(list))
    throw InvalidArgument("there is no " + list.string() +
                          ", which names the programs; give --programs the directory of the built "
                          "programs");
  const auto programs =
      choose_programs(parse_programs(read_named_file(list), list.string()), arguments.methods);
  for (const ComparedProgram& program : programs) {
    const fs::path file = fs::path(arguments.folder) / program.name;
    if (::access(file.c_str(), X_OK) != 0 || fs::is_directory(file))
      throw InvalidArgument("the program of method " + program.name + ", " + file.string() +
                            ", is missing; give --programs the directory of the built programs, "
                            "or --methods those that are there");
  }
  return programs;
}

}  // namespace

std::vector<ComparedProgram> parse_programs(const std::string& text, const std::string& source) {
  const auto json = parse_json(text, source, refuse_as<DataError>);
  std::vector<ComparedProgram> programs;
  for (const auto& one : json) {
    const JsonObject object(one, source, refuse_as<DataError>, "a program");
    programs.push_back({.name = object.text("name"),
                        .tutorial = object.text("tutorial", ""),
                        .on_ranks = object.flag("ranks", false),
                        .takes_nproc = object.flag("nproc", false),
                        .takes_amp = object.flag("amp", false)});
  }
  return programs;
}

std::vector<ComparedProgram> choose_programs(const std::vector<ComparedProgram>& all,
                                             const std::string& names) {
  if (names == "all") return all;
  std::vector<std::string> choices;
  for (const ComparedProgram& program : all) choices.push_back(program.name);
  const auto wanted = bench::parse_choices("--methods", "method", names, choices);
  std::vector<ComparedProgram> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen), [&](const auto& program) {
    return std::find(wanted.begin(), wanted.end(), program.name) != wanted.end();
  });
  return chosen;
}

ProgramsArguments parse_programs_arguments(const Arguments& arguments) {
  CLI::App app(
      "Trains the same model on the same texts with several programs, one after another, and puts "
      "them side by side: a table, comparison.json, comparison.md and comparison.html with "
      "pictures. Further options go to every program, such as --max-steps, --epochs, --seed, "
      "--batch-size, --max-length, --padding, --remove-spaces.",
      "lockstep compare");
  app.allow_extras();
  ProgramsArguments result;
  std::string scaling;
  bool pack = false;
  app.add_option("--data", result.data, "directory or file of labelled texts [built-in sentences]")
      ->type_name("PATH");
  app.add_option("--vocab", result.vocab, "the tokenizer's vocabulary, such as vocab.txt")
      ->type_name("FILE");
  app.add_option("--model", result.model, "mini, base or a model's directory [mini]")
      ->type_name("mini|base|DIR");
  app.add_option("--nproc", result.nproc, "ranks (or devices) of a method [2]");
  app.add_option("--methods", result.methods, "all, or some with commas between them [all]")
      ->type_name("NAME,...");
  app.add_option("--recipe", result.recipe,
                 "the tutorial's own settings, or those for a model from scratch [default]")
      ->type_name("default|tutorial");
  app.add_flag("--pack", pack, "the same as --padding packed");
  app.add_option("--amp", result.amp, "what methods of lower precision compute in [as each has it]")
      ->type_name("bfloat16|float16");
  app.add_option("--scaling", scaling, "also on these numbers of ranks, such as 1,2,4")
      ->type_name("N,...");
  app.add_option("--programs", result.folder,
                 "the directory of the programs, and of programs.json, which names them")
      ->required()
      ->type_name("DIR");
  result.common.add_to(app, "a method", "comparison.json");
  cli::add_example(app,
                   {"lockstep compare --programs build/release/bin/examples/text_classification"});
  parse(app, arguments);
  result.common.check(app);
  if (!scaling.empty()) result.scaling = bench::parse_rank_counts("--scaling", scaling);
  if (result.nproc < 1 || result.nproc > launch::kMostRanksOfAHost)
    throw InvalidArgument("--nproc is " + std::to_string(result.nproc) + "; give 1 to " +
                          std::to_string(launch::kMostRanksOfAHost));
  result.passed = app.remaining();
  if (pack) {
    const Arguments spelled = with_dashes(result.passed);
    for (const std::string& argument : spelled)
      if (argument == "--padding" || argument.starts_with("--padding="))
        throw InvalidArgument("--pack and --padding contradict each other; give one of them");
    result.passed.insert(result.passed.end(), {"--padding", "packed"});
  }
  return result;
}

std::vector<ComparedJob> plan_programs(const std::vector<ComparedProgram>& programs,
                                       const ProgramsArguments& arguments,
                                       const std::string& lockstep) {
  std::vector<ComparedRow> rows;
  for (const ComparedProgram& program : programs)
    rows.push_back({.name = program.name,
                    .tutorial = program.tutorial,
                    .writes = program.name,
                    .has_ranks = program.on_ranks || program.takes_nproc});
  return plan_jobs(rows, arguments.common, arguments.nproc, arguments.scaling,
                   [&](size_t i, const ComparedJob& job) {
                     return command_of(programs[i], job, arguments, lockstep);
                   });
}

int compare_programs(const Arguments& arguments) {
  return run_guarded("compare", [&] {
    ProgramsArguments parsed = parse_programs_arguments(arguments);
    const auto programs = programs_of(parsed);
    if (!parsed.data.empty()) (void)data::text_classification(parsed.data);  // throws
    const auto claim = parsed.common.begin(parsed.nproc);
    bench::Comparison begun = begun_comparison(parsed.common, parsed.nproc);
    begun.model = parsed.model;
    begun.data = parsed.data;
    begun.recipe = parsed.recipe == "default" ? "" : parsed.recipe;
    if (parsed.data.empty()) {
      const fs::path folder = fs::path(parsed.common.output) / "data";
      data::generate_sentences(folder);
      begun.data = "sentences";
      parsed.data = folder.string();
      if (parsed.vocab.empty()) parsed.vocab = (folder / "vocab.txt").string();
    }
    return run_comparison(std::move(begun), plan_programs(programs, parsed, lockstep_program()),
                          parsed.common);
  });
}

}  // namespace lockstep::engine
