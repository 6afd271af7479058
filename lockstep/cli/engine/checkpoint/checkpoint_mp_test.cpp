// Tests `lockstep checkpoint` and `lockstep diff` as users run them.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/checkpoint/slice_index.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/train/run_claim.h"

namespace lockstep::inline v0::engine::checkpoint_mp_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

struct Ended {
  int exit_code = 0;
  std::string out, err;
};

// `as`: words before the engine's.
Ended run(const TestDirectory& dir, const Arguments& arguments, Arguments as = {}) {
  SubprocessOptions options;
  options.command = as;
  options.command.push_back(as.empty() ? "lockstep" : LOCKSTEP_ENGINE);
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  if (as.empty()) options.program = LOCKSTEP_ENGINE;
  const UniqueFd out(::creat((dir / "stdout").c_str(), 0600)),
      err(::creat((dir / "stderr").c_str(), 0600));
  options.stdout_fd = out.get();
  options.stderr_fd = err.get();
  const ExitStatus status = Subprocess(options).wait(Deadline::seconds(120));
  EXPECT_EQ(status.signal, 0);
  return {status.exit_code, dir.read("stdout"), dir.read("stderr")};
}

// Expects one line on stderr, nothing on stdout, and exit code 2.
void expect_line(const TestDirectory& dir, const Arguments& arguments, const std::string& says) {
  const Ended ended = run(dir, arguments);
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(says));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
}

nlohmann::json json_of(const fs::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

std::string seed(const std::string& name) {
  return LOCKSTEP_SOURCE_DIR "/tests/fuzz/seeds/pt_fuzz/" + name;
}

Checkpoint example() {
  Checkpoint checkpoint;
  checkpoint.model = {
      .tensors = {{"fc.bias", at::zeros({3}, at::kLong)}, {"fc.weight", at::ones({3, 2})}},
      .metadata = {{"format", "pt"}}};
  checkpoint.optimizer = Safetensors{.tensors = {{"0.exp_avg", at::ones({3, 2})}}};
  checkpoint.trainer_json = R"({"step": 7, "epoch": 1})";
  checkpoint.config_json = "{}";
  return checkpoint;
}

// Writes a directory of two ranks, each with columns of the matrix.
void write_divided(const TestDirectory& dir, const std::string& name) {
  const fs::path path = dir / name;
  write_checkpoint(path, example());
  fs::remove(path / "model.safetensors");
  fs::remove(path / "checksums.json");
  SliceIndex index;
  index.metadata = {{"format", "pt"}};
  index.tensors["fc.bias"] = {
      .dtype = "I64", .shape = {3}, .strides = {1}, .slices = {{"model-1.safetensors", 0, 3}}};
  index.tensors["fc.weight"] = {.dtype = "F32", .shape = {3, 2}, .strides = {2, 1}, .slices = {}};
  for (int64_t rank = 0; rank < 2; ++rank) {
    const std::string file = "model-" + std::to_string(rank + 1) + ".safetensors";
    NamedTensors tensors{{"fc.weight", at::full({3, 1}, static_cast<float>(rank))}};
    if (rank == 0) tensors.emplace_back("fc.bias", at::zeros({3}, at::kLong));
    write_safetensors(path / file, tensors);
    index.tensors["fc.weight"].slices.push_back({file, 0, 3, {{0, rank}, {3, rank + 1}}});
  }
  dir.write(name + "/model.slices.json", format_slice_index(index));
}

TEST(CheckpointCommand, ADividedModelIsInspectedAndPutTogether) {
  const TestDirectory dir;
  write_divided(dir, "c");
  const Ended ended = run(dir, {"checkpoint", "inspect", dir / "c", "--json", dir / "c.json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("fc.weight"), HasSubstr("[3, 2]"), HasSubstr("step 7"),
                               HasSubstr("2 tensors, 9 parameters, 48 bytes")));
  EXPECT_EQ(json_of(dir / "c.json")["file"], (dir / "c/model.slices.json").string());
  const Ended file = run(dir, {"checkpoint", "inspect", dir / "c/model.slices.json"});
  EXPECT_THAT(file.out, HasSubstr("sliced safetensors"));
  const at::Tensor weight = at::arange(2, at::kFloat).expand({3, 2});
  ASSERT_EQ(run(dir, {"checkpoint", "convert", dir / "c", dir / "m.safetensors"}).exit_code, 0);
  EXPECT_TRUE(read_safetensors(dir / "m.safetensors").find("fc.weight")->equal(weight));
  ASSERT_EQ(run(dir, {"checkpoint", "consolidate", dir / "c", dir / "whole"}).exit_code, 0);
  EXPECT_TRUE(read_safetensors(dir / "whole/model.safetensors").find("fc.weight")->equal(weight));
  EXPECT_FALSE(fs::exists(dir / "whole/model.slices.json"));
  EXPECT_EQ(run(dir, {"diff", dir / "c", dir / "whole"}).exit_code, 0);
  fs::remove(dir / "c/model-2.safetensors");
  expect_line(dir, {"checkpoint", "inspect", dir / "c"}, "model-2.safetensors");
}

TEST(CheckpointCommand, InspectsACheckpoint) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", example());
  const Ended ended = run(dir, {"checkpoint", "inspect", dir / "c", "--json", dir / "c.json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(HasSubstr("fc.weight"), HasSubstr("[3, 2]"), HasSubstr("step 7"),
                               HasSubstr("optimizer.safetensors"), HasSubstr("metadata format: pt"),
                               HasSubstr("2 tensors, 9 parameters, 48 bytes")));
  const auto json = json_of(dir / "c.json");
  EXPECT_EQ(json.at("kind"), "checkpoint");
  EXPECT_EQ(json.at("trainer").at("step"), 7);
  EXPECT_EQ(json.at("parameters"), 9);
  EXPECT_EQ(json.at("tensors")[1].at("dtype"), "F32");
  EXPECT_EQ(json.at("tensors")[1].at("shape"), nlohmann::json({3, 2}));
  for (const auto& file : json.at("files")) {
    const bool listed = file.at("name") != "checksums.json";
    EXPECT_EQ(file.at("checksum"), listed ? "ok" : "none") << file;
  }
}

TEST(CheckpointCommand, DamageIsShownAndNamed) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", example());
  std::string bytes = dir.read("c/optimizer.safetensors");
  bytes.back() ^= 1;
  dir.write("c/optimizer.safetensors", bytes);
  expect_line(dir, {"checkpoint", "inspect", dir / "c"}, "optimizer.safetensors (damaged)");
  EXPECT_THAT(run(dir, {"checkpoint", "inspect", dir / "c"}).out, HasSubstr("damaged"));
  fs::remove(dir / "c/optimizer.safetensors");
  expect_line(dir, {"checkpoint", "inspect", dir / "c"}, "optimizer.safetensors (missing)");
}

TEST(CheckpointCommand, InspectsFiles) {
  const TestDirectory dir;
  const Ended pt = run(dir, {"checkpoint", "inspect", seed("checkpoint.pt")});
  EXPECT_EQ(pt.exit_code, 0) << pt.err;
  EXPECT_THAT(pt.out, AllOf(HasSubstr("pt"), HasSubstr("found under model"), HasSubstr("epoch: 3"),
                            HasSubstr("not tensors: optimizer")));
  fs::copy(seed("linear.pt"), dir / "1.bin");
  fs::copy(seed("without_crc.pt"), dir / "2.bin");
  const fs::path index =
      dir.write("pytorch_model.bin.index.json", R"({"weight_map":{"bias":"1.bin","w":"2.bin"}})");
  const Ended several = run(dir, {"checkpoint", "inspect", index, "--json", dir / "several.json"});
  EXPECT_THAT(several.out, HasSubstr("3 tensors")) << several.err;
  EXPECT_EQ(json_of(dir / "several.json").at("kind"), "sharded pt");
  const Ended theirs = run(dir, {"checkpoint", "inspect", dir.path()});
  EXPECT_THAT(theirs.out, AllOf(HasSubstr("directory"), HasSubstr("3 tensors"))) << theirs.err;
  fs::remove(dir / "2.bin");
  expect_line(dir, {"checkpoint", "inspect", index}, "2.bin: is missing");
  write_safetensors(dir / "model.safetensors", {{"w", at::ones({4})}});
  const Ended brief = run(dir, {"checkpoint", "inspect", dir.path(), "--summary"});
  EXPECT_THAT(brief.out, AllOf(HasSubstr("directory"), HasSubstr("1 tensors, 4 parameters"),
                               Not(HasSubstr("[4]"))));
  expect_line(dir, {"checkpoint", "inspect", seed("command.pt")}, "'posix.system'");
  expect_line(dir, {"checkpoint", "inspect", dir / "none"}, "none");
  expect_line(dir, {"checkpoint", "inspect"}, "PATH");
  expect_line(dir, {"checkpoint", "explode"}, "choose inspect, convert, consolidate or reshard");
}

TEST(CheckpointCommand, WritesACheckpointAgainInOneFileOrInSeveral) {
  const TestDirectory dir;
  Checkpoint checkpoint = example();
  checkpoint.optimizer = Safetensors{.tensors = {{"0.exp_avg", at::rand({3, 2})}}};
  write_checkpoint(dir / "run/checkpoints/last", checkpoint);
  const Ended parts =
      run(dir, {"checkpoint", "reshard", dir / "run", dir / "parts", "--files", "2"});
  ASSERT_EQ(parts.exit_code, 0) << parts.err;
  EXPECT_THAT(parts.out, AllOf(HasSubstr("Wrote " + (dir / "parts").string()),
                               HasSubstr("run/checkpoints/last")));
  EXPECT_TRUE(fs::exists(dir / "parts/optimizer-00002-of-00002.safetensors"));
  const Ended shown = run(dir, {"checkpoint", "inspect", dir / "parts"});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("model-00002-of-00002.safetensors"),
                               HasSubstr("2 tensors, 9 parameters, 48 bytes")))
      << shown.err;
  const Ended whole = run(dir, {"checkpoint", "consolidate", dir / "parts", dir / "whole", "--json",
                                dir / "whole.json"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(json_of(dir / "whole.json").at("files"), 5);
  EXPECT_EQ(dir.read("whole/optimizer.safetensors"),
            dir.read("run/checkpoints/last/optimizer.safetensors"));
  for (const char* other : {"parts", "whole"})
    EXPECT_EQ(run(dir, {"diff", dir / "run/checkpoints/last", dir / other}).exit_code, 0) << other;
  expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "whole"},
              "whole exists; give --force to replace it");
  expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "parts", "--force"},
              "is the checkpoint itself");
  expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "run", "--force"},
              "run holds more than a checkpoint (checkpoints); it is not replaced");
  dir.write("file", "");
  expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "file", "--force"},
              "file is no directory; it is not replaced");
  expect_line(dir, {"checkpoint", "reshard", dir / "parts", dir / "x", "--files", "0"}, "--files");
  {
    const WriterClaim other(dir / "x.lock", "x", [](std::string_view) { return std::nullopt; });
    for (const char* out : {"x", "x/"})
      expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / out},
                  "is in use: process ");
    const WriterClaim over(dir / "whole.lock", "x", [](std::string_view) { return std::nullopt; });
    expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "whole"},
                "is in use: process ");  // its directory may appear and disappear
  }
  EXPECT_FALSE(fs::exists(dir / "x.lock"));
  fs::remove(dir / "parts/optimizer-00001-of-00002.safetensors");
  expect_line(dir, {"checkpoint", "consolidate", dir / "parts", dir / "x"},
              "optimizer-00001-of-00002.safetensors");
  EXPECT_FALSE(fs::exists(dir / "x"));
  EXPECT_EQ(
      run(dir, {"checkpoint", "reshard", dir / "whole", dir / "parts", "--files", "3", "--force"})
          .exit_code,
      0);
}

TEST(CheckpointCommand, WhatMayNotBeReadIsOneLine) {
  const TestDirectory dir;
  write_checkpoint(dir / "c", example());
  write_checkpoint(dir / "shut", example());
  write_safetensors(dir / "file", {{"w", at::ones({4})}});
  fs::permissions(dir.path(), fs::perms(0711));
  fs::permissions(dir / "c", fs::perms(0755));
  for (const char* name : {"shut", "c/trainer.json", "file"})
    fs::permissions(dir / name, fs::perms::none);
  Arguments as;
  if (::geteuid() == 0) {
    as = {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"};
    Arguments probe = as;
    probe.insert(probe.end(), {LOCKSTEP_ENGINE, "checkpoint", "--help"});
    SubprocessOptions options;
    options.command = probe;
    const UniqueFd null(::open("/dev/null", O_WRONLY));
    options.stdout_fd = options.stderr_fd = null.get();
    try {
      if (Subprocess(options).wait(Deadline::seconds(60)).exit_code != 0)
        GTEST_SKIP() << "root reads everything, and nobody cannot run " << LOCKSTEP_ENGINE;
    } catch (const LaunchError&) {
      GTEST_SKIP() << "root reads everything, and there is no setpriv";
    }
  }
  for (const char* name : {"c", "shut", "shut/model.safetensors", "file"}) {
    const Ended ended = run(dir, {"checkpoint", "inspect", dir / name}, as);
    EXPECT_EQ(ended.exit_code, 2) << name << ": " << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr((dir / name).string()), HasSubstr("Permission denied")))
        << name;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  fs::permissions(dir / "shut", fs::perms::owner_all);
}

// It takes the same paths as inspect and eval, a run's best or last checkpoint. Only the result is
// on stdout, if it is written there.
TEST(CheckpointCommand, ConvertsARunsFolder) {
  const TestDirectory dir;
  fs::create_directories(dir / "run/checkpoints");
  write_checkpoint(dir / "run/checkpoints/last", example());
  const Ended ended =
      run(dir, {"checkpoint", "convert", dir / "run", dir / "m.safetensors", "--json", "-"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(nlohmann::json::parse(ended.out).at("in"), (dir / "run/checkpoints/last").string());
  EXPECT_THAT(ended.err, HasSubstr("Wrote "));
  EXPECT_TRUE(read_safetensors(dir / "m.safetensors").find("fc.weight")->equal(at::ones({3, 2})));
}

TEST(CheckpointCommand, ConvertsWhatPythonSaved) {
  const TestDirectory dir;
  const Ended ended =
      run(dir, {"checkpoint", "convert", seed("wrapped.pt"), dir / "out.safetensors", "--dtype",
                "bfloat16", "--json", dir / "j"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("'module.' was left out of the names"));
  const Safetensors out = read_safetensors(dir / "out.safetensors");
  ASSERT_NE(out.find("weight"), nullptr);
  EXPECT_EQ(out.find("weight")->scalar_type(), at::kBFloat16);
  EXPECT_EQ(out.metadata.at("format"), "pt");
  EXPECT_EQ(json_of(dir / "j").at("tensors"), 2);
  expect_line(dir, {"checkpoint", "convert", seed("linear.pt"), dir / "out.safetensors"},
              "exists; give --force");
  // This works in place, too: the input is mapped until the output replaces it.
  ASSERT_EQ(run(dir, {"checkpoint", "convert", dir / "out.safetensors", dir / "out.safetensors",
                      "--dtype", "float32", "--force"})
                .exit_code,
            0);
  EXPECT_EQ(read_safetensors(dir / "out.safetensors").find("bias")->scalar_type(), at::kFloat);
  ASSERT_EQ(run(dir, {"checkpoint", "convert", seed("wrapped.pt"), dir / "kept.safetensors",
                      "--keep-prefix"})
                .exit_code,
            0);
  EXPECT_NE(read_safetensors(dir / "kept.safetensors").find("module.weight"), nullptr);
  expect_line(dir, {"checkpoint", "convert", seed("linear.pt"), dir / "out.pt"},
              "only .safetensors");
  expect_line(dir, {"checkpoint", "convert", seed("legacy.pt"), dir / "l.safetensors"},
              "before PyTorch 1.6");
  expect_line(dir, {"checkpoint", "convert", seed("dtypes.pt"), dir / "l.safetensors"},
              "'complex128'");
  EXPECT_FALSE(fs::exists(dir / "l.safetensors"));
}

TEST(DiffCommand, ComparesCheckpoints) {
  const TestDirectory dir;
  Checkpoint checkpoint = example();
  write_checkpoint(dir / "a", checkpoint);
  write_checkpoint(dir / "same", checkpoint);
  checkpoint.optimizer = Safetensors{.tensors = {{"0.exp_avg", at::full({3, 2}, 1.5)}}};
  checkpoint.model.tensors[1].first = "fc.other";
  write_checkpoint(dir / "b", checkpoint);
  const Ended same = run(dir, {"diff", dir / "a", dir / "same"});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("3 tensors, all equal"));
  const Ended ended = run(dir, {"diff", dir / "a", dir / "b", "--json", dir / "d.json"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("3 tensors differ, the first is fc.other"), HasSubstr("missing in A"),
                    HasSubstr("optimizer/0.exp_avg"), HasSubstr("at most 0.5 (relative 0.333)")));
  const auto json = json_of(dir / "d.json");
  EXPECT_FALSE(json.at("equal").get<bool>());
  EXPECT_EQ(json.at("tensors").at("differences")[0].at("kind"), "missing_in_a");
  EXPECT_EQ(json.at("tensors").at("differences")[2].at("different"), 6);
  // Files of other kinds are compared within a tolerance.
  EXPECT_EQ(run(dir, {"diff", seed("linear.pt"), seed("linear.pt")}).exit_code, 0);
  write_safetensors(dir / "1.safetensors", {{"w", at::full({2}, 1.0)}});
  write_safetensors(dir / "2.safetensors", {{"w", at::full({2}, 1.001)}});
  EXPECT_EQ(run(dir, {"diff", dir / "1.safetensors", dir / "2.safetensors"}).exit_code, 1);
  EXPECT_EQ(run(dir, {"diff", dir / "1.safetensors", dir / "2.safetensors", "--tolerance", "0.01"})
                .exit_code,
            0);
}

// A terminal would take "\x1b]0;" for a command.
TEST(DiffCommand, WhatStandsInFilesIsShownAndNotObeyed) {
  const TestDirectory dir;
  const std::string name = "a\x1b]0;b\x07\n\u009b";
  for (const int value : {0, 1}) {
    const std::string side = std::to_string(value);
    write_safetensors(dir / ("s" + side), {{name, at::full({2}, value)}});
    fs::create_directories(dir / ("run" + side));
    dir.write("run" + side + "/metrics.jsonl",
              nlohmann::json{{"step", 1}, {"type", name}, {name, name + side}}.dump() + "\n");
  }
  const auto shown = [&](const Arguments& arguments) {
    const Ended ended = run(dir, arguments);
    for (const std::string& text : {ended.out, ended.err}) {
      EXPECT_THAT(text,
                  AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\x07")), Not(HasSubstr("\u009b"))));
    }
    return ended.out + ended.err;
  };
  EXPECT_THAT(shown({"diff", dir / "s0", dir / "s1"}), HasSubstr("the first is a?]0;b???; 1 are"));
  EXPECT_THAT(shown({"diff", dir / "run0", dir / "run1"}),
              AllOf(HasSubstr("a?]0;b??? a?]0;b??? is \"a"), HasSubstr(R"(\u001b]0;b)")));
  EXPECT_THAT(shown({"checkpoint", "inspect", dir / "s0"}), HasSubstr("a?]0;b???"));
  EXPECT_THAT(shown({"checkpoint", "inspect", dir / ("no" + name)}), HasSubstr("noa?]0;b?"));
}

TEST(DiffCommand, ComparesRuns) {
  const TestDirectory dir;
  for (const std::string name : {"a", "b"}) {
    const bool b = name == "b";
    Checkpoint checkpoint = example();
    if (b) checkpoint.model.tensors[1].second.mul_(2);
    write_checkpoint(dir / (name + "/checkpoints/last"), checkpoint);
    dir.write(name + "/metrics.jsonl",
              "{\"type\":\"train\",\"step\":1,\"loss\":0.5,\"seconds\":" + std::to_string(b) +
                  "}\n" + "{\"type\":\"train\",\"step\":2,\"loss\":" + (b ? "0.25" : "0.375") +
                  "}\n");
  }
  const Ended ended = run(dir, {"diff", dir / "a", dir / "b", "--json", dir / "d.json"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("first difference at step 2: train loss is 0.375 and 0.25"),
                    HasSubstr("the first is fc.weight")));
  EXPECT_EQ(json_of(dir / "d.json").at("metrics").at("first").at("step"), 2);
  EXPECT_EQ(run(dir, {"diff", dir / "a", dir / "a"}).exit_code, 0);
  expect_line(dir, {"diff", dir / "a", dir / "a/checkpoints/last"},
              "give two runs, or two checkpoints");
  expect_line(dir, {"diff", dir / "a", dir / "none"}, "does not exist");
  expect_line(dir, {"diff", dir / "a", dir / "a", "--tolerance", "-1"}, "give 0 or more");
  dir.write("b/metrics.jsonl", "{");
  expect_line(dir, {"diff", dir / "a", dir / "b"}, "metrics.jsonl:1");
}

}  // namespace lockstep::inline v0::engine::checkpoint_mp_test
