#include "lockstep/checkpoint/reshard.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/cli/engine/checkpoint/command.h"
#include "lockstep/cli/option_parsing.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/train/run_claim.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

struct ReshardArguments {
  std::string in, out, json;
  int files = 1;
  bool force = false;
};

void add_options(CLI::App& app, ReshardArguments& arguments) {
  app.add_option("IN", arguments.in, "a checkpoint, or the folder of a run: its best or last")
      ->required()
      ->type_name("DIR");
  app.add_option("OUT", arguments.out, "the directory to write")->required()->type_name("DIR");
  app.add_flag("--force", arguments.force, "replace OUT if it exists");
  app.add_option("--json", arguments.json, "also write what was done to this file")
      ->type_name("FILE");
}

// The directory that is replaced is lost, so it must be a checkpoint, with nothing else beside it.
void check_replaceable(const fs::path& out) {
  if (!fs::is_directory(out))
    throw InvalidArgument(out.string() + " is no directory; it is not replaced");
  const FileSums listed = read_checksums(out);
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename();
    if (listed.count(name) != 0 || name == "checksums.json") continue;
    throw InvalidArgument(out.string() + " holds more than a checkpoint (" + name +
                          "); it is not replaced");
  }
}

int reshard(const ReshardArguments& arguments) {
  const fs::path in = checkpoint_meant(arguments.in), out = arguments.out;
  if (fs::exists(out) && fs::exists(in) && fs::equivalent(in, out))
    throw InvalidArgument(arguments.out + " is the checkpoint itself; name another directory");
  check_result_files({arguments.json});
  // Of two processes that write the same directory, one would remove the other's files; the
  // directory is therefore checked afterwards.
  const fs::path whole = fs::absolute(out.has_filename() ? out : out.parent_path());
  std::error_code said_by_the_claim;
  fs::create_directories(whole.parent_path(), said_by_the_claim);
  const WriterClaim claim(whole.string() + ".lock", arguments.out, process_env());
  if (fs::exists(out) && !arguments.force)
    throw InvalidArgument(arguments.out + " exists; give --force to replace it");
  if (fs::exists(out)) check_replaceable(out);
  reshard_checkpoint(in, out, arguments.files);
  uint64_t bytes = 0;
  const FileSums sums = read_checksums(out);
  for (const auto& [name, sum] : sums) bytes += sum.bytes;
  std::cout << "Wrote " << out.string() << ": " << sums.size() << " files, " << bytes
            << " bytes, of " << in.string() << std::endl;
  write_json(
      arguments.json,
      {{"in", in.string()}, {"out", out.string()}, {"files", sums.size()}, {"bytes", bytes}});
  return 0;
}

}  // namespace

int checkpoint_consolidate(const Arguments& words) {
  return run_guarded("checkpoint consolidate", [&] {
    CLI::App app(
        "Writes a checkpoint that several ranks wrote in parts as one that has its model and its "
        "optimizer's state in a file each: for torch, transformers, and save_optimizer()'s "
        "readers. "
        "One tensor at a time is in memory.",
        "lockstep checkpoint consolidate");
    ReshardArguments arguments;
    add_options(app, arguments);
    cli::add_example(app, {"lockstep checkpoint consolidate runs/lm whole"});
    parse(app, words);
    return reshard(arguments);
  });
}

int checkpoint_reshard(const Arguments& words) {
  return run_guarded("checkpoint reshard", [&] {
    CLI::App app(
        "Writes a checkpoint with its model and its optimizer's state in so many files. Any number "
        "of ranks goes on from any number of files.",
        "lockstep checkpoint reshard");
    ReshardArguments arguments;
    add_options(app, arguments);
    app.add_option("--files", arguments.files, "files of each")
        ->required()
        ->check(CLI::Range(1, 99999));
    cli::add_example(app, {"lockstep checkpoint reshard runs/lm parts --files 4"});
    parse(app, words);
    return reshard(arguments);
  });
}

}  // namespace lockstep::inline v0::engine
