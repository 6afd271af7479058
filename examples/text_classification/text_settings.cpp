#include <lockstep/core/env.h>
#include <lockstep/core/errors.h>
#include <lockstep/core/log.h>
#include <lockstep/core/memory_settings.h>
#include <lockstep/core/output.h>
#include <lockstep/launch/job_environment.h>
#include <lockstep/model/bert_config.h>
#include <lockstep/optim/schedule.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "../number_checks.h"
#include "text_training.h"

namespace text {
namespace {

// The tutorial's: a pretrained model for one epoch. The default is for a model drawn at random:
// a greater rate that rises and falls, more epochs, and no padding beyond the longest of a batch.
void fill_in(Settings& s) {
  const bool tutorial = s.recipe == "tutorial";
  if (s.epochs == 0) s.epochs = tutorial ? 1 : 3;
  if (s.batch_size == 0) s.batch_size = 32;
  if (s.max_length == 0) s.max_length = 128;
  if (s.padding.empty()) s.padding = tutorial ? "max_length" : "longest";
  if (s.lr == 0) s.lr = tutorial ? 3e-5 : 5e-4;
  if (!tutorial) {
    s.warmup_ratio = 0.1;
    s.linear_decay = true;
  }
  if (s.output.empty()) s.output = "runs/text_classification/" + s.method;
}

void add_options(CLI::App& app, Settings& s) {
  app.add_option("--data", s.data,
                 "directory or file of labelled texts; default: sentences made in data/sentences");
  app.add_option("--vocab", s.vocab, "BERT's vocab.txt or tokenizer.json; default: the model's");
  app.add_option("--model", s.model, "mini, base, or a directory of Hugging Face's form")
      ->capture_default_str();
  app.add_option("--output", s.output, "where the checkpoint goes [runs/text_classification/...]");
  app.add_option("--json", s.json, "also write the result to this file");
  app.add_option("--recipe", s.recipe, "default, or tutorial: rate 3e-5, one epoch, padded to 128")
      ->check(CLI::IsMember({"default", "tutorial"}))
      ->capture_default_str();
  app.add_option("--epochs", s.epochs, "passes over the training texts [3, tutorial: 1]")
      ->check(above_zero());
  app.add_option("--batch-size", s.batch_size, "texts a rank and step [32]")->check(above_zero());
  app.add_option("--lr", s.lr, "learning rate [5e-4, tutorial: 3e-5]")->check(above_zero());
  app.add_option("--max-length", s.max_length, "tokens of a text [128]")->check(CLI::Range(2, 512));
  app.add_option("--padding", s.padding, "max_length, longest or packed")
      ->check(CLI::IsMember({"max_length", "longest", "packed"}));
  app.add_flag("--remove-spaces", s.remove_spaces,
               "take the spaces out of every text: for Chinese whose words are cut by spaces, as "
               "the tutorial's are");
  app.add_option("--max-steps", s.max_steps, "end after so many; 0: all")->check(zero_or_more());
  app.add_option("--eval-step", s.eval_step, "steps between evaluations on the dev set")
      ->check(above_zero());
  app.add_option("--seed", s.seed, "of weights, order and dropout")
      ->check(zero_or_more())
      ->capture_default_str();
  // The tutorial's word for it, which a launcher's ranks are told as well.
  app.add_option("--nproc,--local_world_size,--local-world-size", s.nproc,
                 "replicas, or ranks to start, where the method makes them; where a launcher has, "
                 "how many it started")
      ->check(above_zero())
      ->capture_default_str();
  app.add_option("--amp", s.amp, "bfloat16 or float16, where the method computes in it")
      ->check(CLI::IsMember({"bfloat16", "float16"}));
  app.add_option("--config", s.config, "DeepSpeed-style JSON, for zero_engine")
      ->check(CLI::ExistingFile);
  app.add_option("--local_rank,--local-rank", s.local_rank,
                 "what a launcher without --use_env passes; LOCAL_RANK counts")
      ->check(zero_or_more());
}

// The tutorial's lines give the number of ranks to the program, too, and a launcher without --use_env the rank's
// own: what the launcher has told counts, and must agree.
void check_ranks(const CLI::App& app, const Settings& s,
                 const lockstep::launch::JobEnvironment& job) {
  if (job.launcher == lockstep::launch::Launcher::kNone || app.get_option("--nproc")->empty() ||
      s.nproc == job.local_world_size)
    return;
  throw lockstep::InvalidArgument(
      "--local_world_size is " + std::to_string(s.nproc) + ", but the launcher has started " +
      std::to_string(job.local_world_size) + " ranks here; leave it out");
}

int fail(const std::string& method, const std::string& message, int code) {
  lockstep::write_all(STDERR_FILENO, method + ": " + message.substr(0, message.find('\n')) + "\n");
  return code;
}

}  // namespace

double Settings::rate(int64_t step, int64_t total) const {
  if (!linear_decay) return lr;
  using namespace lockstep::optim;
  return lr * linear({.total_steps = total, .warmup = {.ratio = warmup_ratio}}).factor(step);
}

int run_program(const char* method, int argc, char** argv,
                const std::function<void(const Settings&)>& program) {
  lockstep::keep_freed_memory();
  Settings settings;
  settings.method = method;
  settings.started = std::chrono::system_clock::now();
  CLI::App app("Classifies texts with BERT: tutorial 003's method " + settings.method + ".",
               method);
  add_options(app, settings);
  try {
    app.parse(argc, argv);
    fill_in(settings);
    const auto job = lockstep::launch::read_job_environment(lockstep::process_env());
    check_ranks(app, settings, job);
    if (job.rank == 0) {
      const lockstep::OutputFolder tried(settings.output);
      lockstep::check_output_file(settings.json);
    }
    program(settings);
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return fail(method, error.what(), 2);
  } catch (const lockstep::InvalidArgument& error) {
    return fail(method, error.what(), 2);
  } catch (const lockstep::DataError& error) {
    return fail(method, error.what(), 2);
  } catch (const lockstep::CheckpointError& error) {
    return fail(method, error.what(), 2);
  } catch (const std::exception& error) {
    return fail(method, error.what(), 1);
  }
}

}  // namespace text
