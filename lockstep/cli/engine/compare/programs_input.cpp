#include "lockstep/cli/engine/compare/programs_input.h"

#include <unistd.h>

#include <algorithm>

#include "lockstep/core/cpus.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/core/output.h"
#include "lockstep/data/sentences.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/launch/job_environment.h"
#include "lockstep/model/bert_config.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep::engine {
namespace fs = std::filesystem;
namespace {

void check_programs(const MethodsArguments& arguments) {
  for (const TrainingMethod& method : arguments.methods) {
    const fs::path program = fs::path(arguments.programs) / method.name;
    if (::access(program.c_str(), X_OK) == 0 && !fs::is_directory(program)) continue;
    throw InvalidArgument("the program of method " + std::string(method.name) + ", " +
                          program.string() +
                          ", is missing; give --programs the directory of the built programs, or "
                          "--methods those that are there");
  }
  const fs::path command = lockstep_program();
  const bool runs = std::any_of(arguments.methods.begin(), arguments.methods.end(),
                                [](const TrainingMethod& method) { return method.on_ranks; });
  if (runs && ::access(command.c_str(), X_OK) != 0)
    throw InvalidArgument(command.string() + ", which starts the ranks, is missing");
}

// A preset's name, or a Hugging Face directory; its weights are the programs' to read.
void check_model(const std::string& model) {
  const auto& presets = bert_preset_names();
  if (std::find(presets.begin(), presets.end(), model) != presets.end()) return;
  const fs::path config =
      fs::path(model).extension() == ".json" ? fs::path(model) : fs::path(model) / "config.json";
  if (!fs::exists(config)) {
    throw InvalidArgument("--model is '" + model +
                          "'; give mini, base or a directory that has a config.json");
  }
  check(bert_config_from_json(read_named_file(config), config.string()));
}

void check_data(MethodsArguments& arguments) {
  if (!arguments.data.empty()) {
    data::text_classification(arguments.data);
    return;
  }
  const fs::path folder = fs::path(arguments.output) / "data";
  data::generate_sentences(folder);
  arguments.data = folder.string();
  arguments.built_in = true;
  if (arguments.vocab.empty()) arguments.vocab = (folder / "vocab.txt").string();
}

}  // namespace

std::unique_ptr<RunClaim> check_programs_input(MethodsArguments& arguments) {
  const auto job = launch::read_job_environment(process_env());
  if (job.launcher != launch::Launcher::kNone)
    throw InvalidArgument("compare starts the ranks itself; call it without a launcher");
  check_programs(arguments);
  check_model(arguments.model);
  if (!arguments.vocab.empty()) tokenizers::BertTokenizer::load(arguments.vocab);
  auto claim = std::make_unique<RunClaim>(arguments.output, process_env());
  check_result_files({arguments.json});
  check_data(arguments);
  if (arguments.threads == 0)
    arguments.threads = std::max<int64_t>(1, usable_cpu_count() / arguments.nproc);
  return claim;
}

fs::path lockstep_program() {
  return self().parent_path().parent_path().parent_path() / "bin" / "lockstep";
}

}  // namespace lockstep::engine
