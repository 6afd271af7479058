// Tests `lockstep compare` with programs that only pretend to train, and with strategies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/compare/programs.h"
#include "lockstep/cli/engine/tools_run_test.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"
#include "lockstep/train/run_claim.h"

namespace lockstep::inline v0::engine::compare_mp_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Writes a result as a method's program does. A file NAME.does beside it makes it end in another
// way.
constexpr const char* kProgram = R"(#!/bin/sh
name=$(basename "$0")
here=$(dirname "$0")
[ -n "$WORLD_SIZE" ] && nproc=$WORLD_SIZE || nproc=1
echo "arguments: $* threads: $OMP_NUM_THREADS"
while [ $# -gt 0 ]; do
  case "$1" in --json) json=$2 ;; --nproc) nproc=$2 ;; --output) out=$2 ;; esac
  shift
done
[ -d "$out" ] || exit 9
[ "${RANK:-0}" = 0 ] || exit 0
printf 'half\rwhole\r' >&2
echo "【train】 epoch：1/1 step：1/2 loss：1.765123"
case $(cat "$here/$name.does" 2>/dev/null) in
  fail) echo "the <loss> is no number" >&2; exit 3 ;;
  refuse) echo "$name: the data is bad" >&2; exit 2 ;;
  kill) kill -9 $$ ;;
  silent) exit 0 ;;
  interrupt)
    trap 'echo ended in order; exit 0' TERM
    kill -TERM $PPID
    while :; do sleep 0.1; done ;;
  hostile) echo '{"method": "'$name'", "nproc": "two"}' > "$json"; exit 0 ;;
esac
cat > "$json" <<END
{"method": "$name", "nproc": $nproc, "model": "mini", "dtype": "float32", "padding": "max_length",
 "steps": 2, "epochs": 1, "samples": 128, "batch_size": 32, "startup_s": 0.1,
 "seconds": $((12 / nproc)), "minutes": 0.1, "samples_per_s": $((10 * nproc)),
 "losses": [1.75, 1.5], "evaluations": [], "dev_accuracy": 0.5, "macro_f1": 0.4,
 "labels": ["其他", "喜好"], "confusion": [[3, 1], [2, 2]], "peak_memory_mib": [300],
 "parts_s": {"data": 0.1, "forward": 1, "backward": 2, "wait": 0, "optimizer": 0.5},
 "checkpoint": "$out/last"}
END
)";

const std::vector<ComparedProgram>& the_nine() {
  static const std::string file = LOCKSTEP_SOURCE_DIR "/examples/text_classification/programs.json";
  static const auto programs = parse_programs(read_named_file(file), file);
  return programs;
}

class ComparePrograms : public ::testing::Test {
 protected:
  ComparePrograms() {
    std::filesystem::create_directory(dir_ / "programs");
    for (const ComparedProgram& method : the_nine()) {
      const auto path = dir_.write("programs/" + method.name, kProgram);
      ::chmod(path.c_str(), 0755);
    }
    std::filesystem::copy_file(LOCKSTEP_SOURCE_DIR "/examples/text_classification/programs.json",
                               dir_ / "programs/programs.json");
    std::filesystem::create_directory(dir_ / "data");
    dir_.write("data/train.jsonl", R"({"text": "好", "label": 0}
{"text": "坏", "label": 1}
{"text": "好吗", "label": 0}
)");
    dir_.write("data/dev.jsonl", R"({"text": "好", "label": 0})"
                                 "\n");
  }

  // The program of the method ends in that way from now on.
  void make(const std::string& method, const std::string& what) {
    dir_.write("programs/" + method + ".does", what);
  }

  ToolsEnd run(const Arguments& more) {
    Arguments words{"compare"};
    for (const auto& [option, value] : {std::pair{"--data", dir_ / "data"},
                                        {"--output", dir_ / "out"},
                                        {"--programs", dir_ / "programs"}}) {
      if (std::find(more.begin(), more.end(), option) == more.end())
        words.insert(words.end(), {option, value});
    }
    words.insert(words.end(), more.begin(), more.end());
    return run_tools(dir_, words);
  }
  nlohmann::json comparison() { return nlohmann::json::parse(dir_.read("out/comparison.json")); }

  TestDirectory dir_;
};

TEST_F(ComparePrograms, AllNineInOneTable) {
  const ToolsEnd ended = run({"--nproc", "2", "--seed", "5", "--threads-per-rank", "3", "--json",
                              dir_ / "copy.json", "--amp", "bfloat16"});
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  const auto methods = comparison().at("methods");
  ASSERT_EQ(methods.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    const ComparedProgram& method = the_nine()[i];
    EXPECT_EQ(methods[i].at("method"), method.name);
    EXPECT_EQ(methods[i].at("tutorial"), method.tutorial);
    const int nproc = i == 0 ? 1 : 2;
    EXPECT_EQ(methods[i].at("nproc"), nproc) << method.name;
    EXPECT_EQ(methods[i].at("speedup"), nproc) << method.name;
    EXPECT_EQ(methods[i].at("peak_memory_mib"), 300);
    EXPECT_EQ(methods[i].at("first_losses").size(), 2u);
    EXPECT_THAT(ended.out, HasSubstr(method.name));
    const std::string log = dir_.read("out/" + method.name + "/log.txt");
    EXPECT_THAT(log, AllOf(HasSubstr("--seed 5"), HasSubstr("threads: 3\n"),
                           HasSubstr("【train】 epoch"), Not(HasSubstr("half"))));
    EXPECT_EQ(log.find("--amp bfloat16") != std::string::npos, method.takes_amp) << method.name;
    EXPECT_THAT(ended.err, HasSubstr("[" + std::to_string(i + 1) + "/9] " + method.name + ": 2 "));
  }
  EXPECT_EQ(comparison(), nlohmann::json::parse(dir_.read("copy.json")));
  EXPECT_THAT(dir_.read("out/comparison.html"), HasSubstr("训练 BERT 的 9 种方法"));
  EXPECT_THAT(dir_.read("out/comparison.md"), HasSubstr("multi-gpu-deepspeed-cls"));
}

TEST_F(ComparePrograms, AMethodThatFailsIsNamedAndTheRestGoOn) {
  make("distributed", "fail");
  make("distributed_spawn", "kill");
  make("horovod", "silent");
  make("trainer", "hostile");
  const ToolsEnd ended = run({});
  EXPECT_EQ(ended.status.exit_code, 1);
  const auto methods = comparison().at("methods");
  ASSERT_EQ(methods.size(), 9u);
  EXPECT_THAT(methods[2].at("failure").get<std::string>(), HasSubstr("exit code 1"));
  EXPECT_THAT(methods[3].at("failure").get<std::string>(), HasSubstr("signal SIGKILL"));
  EXPECT_THAT(methods[5].at("failure").get<std::string>(), HasSubstr("no usable result"));
  EXPECT_THAT(methods[8].at("failure").get<std::string>(), HasSubstr("nproc is \"two\""));
  EXPECT_EQ(methods[7].at("speedup"), 2);
  EXPECT_THAT(ended.out, HasSubstr("failed"));
  // The end of stderr is the first failure with its reason.
  const size_t at = ended.err.find("lockstep compare: distributed failed");
  ASSERT_NE(at, std::string::npos) << ended.err;
  EXPECT_THAT(ended.err.substr(at),
              AllOf(HasSubstr("out/distributed/log.txt"), HasSubstr("the <loss> is no number")));
}

TEST_F(ComparePrograms, AFormerResultIsNotTakenForThisOne) {
  ASSERT_EQ(run({"--methods", "single,trainer"}).status.exit_code, 0);
  make("single", "silent");
  const ToolsEnd ended = run({"--methods", "single"});
  EXPECT_EQ(ended.status.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("the former run is now in " + (dir_ / "out/previous").string()));
  EXPECT_TRUE(comparison().at("methods")[0].contains("failure"));
  EXPECT_FALSE(dir_.read("out/previous/single/run.json").empty());
  EXPECT_FALSE(dir_.read("out/previous/trainer/run.json").empty());
  EXPECT_FALSE(dir_.read("out/previous/comparison.html").empty());
}

TEST_F(ComparePrograms, AFolderOfOthersStaysWhereItIs) {
  std::filesystem::create_directories(dir_ / "out/mine");
  dir_.write("out/mine/log.txt", "a log of another program");
  for (int i = 0; i < 2; ++i) ASSERT_EQ(run({"--methods", "single"}).status.exit_code, 0);
  EXPECT_EQ(dir_.read("out/mine/log.txt"), "a log of another program");
  EXPECT_FALSE(dir_.read("out/previous/single/run.json").empty());

  std::filesystem::create_directory(dir_ / "out/trainer");
  dir_.write("out/trainer/log.txt", "another one");
  const ToolsEnd ended = run({"--methods", "single,trainer"});
  EXPECT_EQ(ended.status.exit_code, 2);
  EXPECT_EQ(ended.err,
            "lockstep compare: " + (dir_ / "out/trainer").string() +
                " is there, and no former `lockstep compare` has recorded it as its own; give "
                "another --output, or move it away\n");
  EXPECT_EQ(dir_.read("out/trainer/log.txt"), "another one");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out/previous-1"));
}

TEST_F(ComparePrograms, ASignalEndsTheRunningJobInOrder) {
  make("single", "interrupt");
  const ToolsEnd ended = run({"--methods", "single,trainer"});
  EXPECT_EQ(ended.status.exit_code, 128 + SIGTERM);
  EXPECT_THAT(ended.err, HasSubstr("lockstep compare: stopped by SIGTERM; the logs are in " +
                                   (dir_ / "out").string() + "\n"));
  EXPECT_THAT(dir_.read("out/single/log.txt"), HasSubstr("ended in order"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out/trainer"));
}

TEST_F(ComparePrograms, WhatTheFirstProgramRefusesIsBadInput) {
  make("single", "refuse");
  const ToolsEnd ended = run({});
  EXPECT_EQ(ended.status.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("lockstep compare: single: the data is bad\n"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out/data_parallel"));
}

TEST_F(ComparePrograms, ScalingRunsFurtherNumbersOfRanks) {
  const ToolsEnd ended = run({"--methods", "distributed,data_parallel", "--scaling", "1,2,4"});
  ASSERT_EQ(ended.status.exit_code, 0) << ended.err;
  const auto json = comparison();
  EXPECT_EQ(json.at("methods").size(), 2u);
  ASSERT_EQ(json.at("scaling").size(), 2u);
  const auto runs = json.at("scaling")[1].at("runs");
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[2].at("nproc"), 4);
  EXPECT_EQ(runs[2].at("speedup"), 4);
  EXPECT_EQ(runs[2].at("efficiency"), 1);
  EXPECT_THAT(dir_.read("out/comparison.html"), HasSubstr("Time against ranks"));
}

TEST_F(ComparePrograms, WithoutDataItMakesItsOwnSentences) {
  const ToolsEnd ended = run_tools(dir_, {"compare", "--methods", "single", "--output",
                                          dir_ / "own", "--programs", dir_ / "programs"});
  ASSERT_TRUE(ended.status.ok()) << ended.err;
  EXPECT_FALSE(dir_.read("own/data/vocab.txt").empty());
  EXPECT_THAT(dir_.read("own/single/log.txt"),
              AllOf(HasSubstr("--data " + (dir_ / "own/data").string()),
                    HasSubstr("--vocab " + (dir_ / "own/data/vocab.txt").string())));
  EXPECT_EQ(nlohmann::json::parse(dir_.read("own/comparison.json")).at("data"), "sentences");
}

TEST_F(ComparePrograms, BadInputIsOneLineBeforeAnythingStarts) {
  const auto refuses = [&](const Arguments& more, const std::string& says) {
    const ToolsEnd ended = run(more);
    EXPECT_EQ(ended.status.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("lockstep compare: "), HasSubstr(says)));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  };
  refuses({"--methods", "all,none"}, "no method 'all'");
  refuses({"--data", dir_ / "nothing"}, "nothing");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
  refuses({"--data", dir_.write("bad.jsonl", "{}\n").string()}, "bad.jsonl");
  refuses({"--vocab", dir_ / "nothing.txt"}, "nothing.txt");
  refuses({"--model", "huge"}, "--model is 'huge'; give mini, base or a directory");
  refuses({"--model", dir_.write("config.json", "{").string()}, "config.json");
  refuses({"--output", dir_.write("file", "").string()}, "file");
  refuses({"--json", dir_.path().string()}, "is a directory");
  refuses({"--programs", dir_ / "data"}, "there is no " + (dir_ / "data/programs.json").string());
  std::filesystem::remove(dir_ / "programs/accelerator");
  refuses({}, "accelerator, is missing; give --programs the directory of the built programs");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out/single"));
}

TEST(CompareStrategies, TrainOneRecipeSideBySide) {
  const TestDirectory dir;
  const auto run = [&](const Arguments& words) {
    const ToolsEnd ended =
        run_tools(dir, words, words.front() == "compare" ? LOCKSTEP_TOOLS : LOCKSTEP_ENGINE);
    EXPECT_TRUE(ended.status.ok()) << ended.err;
  };
  const std::string out = dir / "out";
  run({"compare", "mnist", "--strategies", "single,ddp,ddp-bf16,zero3,average", "--max-steps", "4",
       "--output", out, "--scaling", "1"});
  const auto json = nlohmann::json::parse(dir.read("out/comparison.json"));
  EXPECT_EQ(json.at("subject"), "simple-cnn");
  EXPECT_EQ(json.at("data"), "digits");
  const auto& methods = json.at("methods");
  ASSERT_EQ(methods.size(), 5u);
  EXPECT_GT(methods[4].at("parts_s").at("wait").get<double>(), 0);
  EXPECT_EQ(methods[0].at("method"), "single");
  EXPECT_EQ(methods[0].at("nproc"), 1);
  EXPECT_EQ(methods[2].at("method"), "ddp-bf16");
  EXPECT_EQ(methods[2].at("dtype"), "bfloat16");
  EXPECT_EQ(json.at("scaling").size(), 4u);
  for (const auto& method : methods) {
    EXPECT_EQ(method.at("losses").size(), 4u) << method;
    EXPECT_GT(method.at("parts_s").at("forward").get<double>(), 0);
    EXPECT_EQ(method.at("peak_memory_mib_by_rank").size(), method.at("nproc").get<size_t>());
    EXPECT_TRUE(method.contains("confusion"));
    EXPECT_FALSE(method.contains("failure"));
  }
  // Two ranks give the same numbers in both ways, and the same as train alone.
  EXPECT_EQ(methods[1].at("losses"), methods[3].at("losses"));
  run({"train", "mnist", "--nproc", "2", "--data", dir / "out/data", "--max-steps", "4", "--output",
       dir / "alone", "--record", dir / "alone.json", "--quiet"});
  EXPECT_EQ(nlohmann::json::parse(dir.read("alone.json")).at("losses"), methods[1].at("losses"));
  EXPECT_THAT(dir.read("out/comparison.html"),
              AllOf(HasSubstr("5 ways to train simple-cnn"), Not(HasSubstr("in the tutorial"))));
}

TEST(CompareStrategies, BadInputIsOneLineBeforeAnythingStarts) {
  const TestDirectory dir;
  const auto refuses = [&](Arguments words, const std::string& says) {
    words.insert(words.begin(), "compare");
    words.insert(words.end(), {"--output", dir / "out"});
    const ToolsEnd ended = run_tools(dir, words);
    EXPECT_EQ(ended.status.exit_code, 2);
    const std::string& line = ended.err;
    EXPECT_THAT(line, AllOf(HasSubstr("lockstep compare: "), HasSubstr(says)));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  };
  refuses({"mnits"}, "did you mean mnist?");
  refuses({"mnist", "--strategies", "single,zreo"}, "did you mean 'zero");
  refuses({"mnist", "--strategy", "ddp"}, "--strategy does not go with compare");
  refuses({"mnist", "--epochs", "half"}, "--epochs");
  refuses({"mnist", "--no-such", "1"}, "--no-such");
  refuses({"mnist", "--data", dir / "nothing"}, "nothing");
  refuses({"--methods", "single"}, "--programs is required");
}

TEST(CompareScaling, NamesNoFilesWhereNoSizeHasAResult) {
  const TestDirectory dir;
  const ToolsEnd ended = run_tools(dir, {"compare", "--scaling", "1", "--max-steps", "1",
                                         "--timeout", "0.001", "--output", dir / "out"});
  EXPECT_EQ(ended.status.exit_code, 1) << ended.err;
  EXPECT_EQ(ended.out, "No number of ranks has a result.\n");
  EXPECT_THAT(ended.err, HasSubstr("1 rank failed: no end within"));
  EXPECT_FALSE(std::filesystem::exists(dir / "out/scaling.json"));
}

// Every kind of comparison refuses.
TEST(Compare, AFolderThatAnotherIsWritingIsRefused) {
  const TestDirectory dir;
  const RunClaim first(dir / "out", [](std::string_view) { return std::nullopt; });
  for (Arguments words : {Arguments{"mnist", "--data", "digits"},
                          {"--scaling", "1", "--data", "digits"},
                          {"--parallelism", "--nproc", "2"}}) {
    words.insert(words.begin(), "compare");
    words.insert(words.end(), {"--output", dir / "out"});
    const ToolsEnd ended = run_tools(dir, words);
    EXPECT_EQ(ended.status.exit_code, 2) << words[1];
    EXPECT_THAT(ended.err,
                AllOf(HasSubstr("lockstep compare: output "), HasSubstr("is in use: process ")));
  }
}

}  // namespace lockstep::inline v0::engine::compare_mp_test
