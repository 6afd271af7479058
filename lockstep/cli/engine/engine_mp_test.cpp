// Tests the engine as users run it: a program with arguments, files and exit codes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "lockstep/checkpoint/checkpoint_directory.h"
#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/core/text.h"
#include "lockstep/data/digits.h"
#include "lockstep/data/sentences.h"
#include "lockstep/data/shapes.h"
#include "lockstep/device/nvtx.h"
#include "lockstep/train/requeue_note.h"

namespace lockstep::inline v0::engine::engine_mp_test {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int exit_code = 0;
  int signal = 0;
  std::string out, err;
};

// A started engine, with its output in files of `dir`.
class Engine {
 public:
  Engine(const TestDirectory& dir, const Arguments& arguments) : dir_(dir) {
    const UniqueFd out(::creat((dir / "stdout").c_str(), 0600)),
        err(::creat((dir / "stderr").c_str(), 0600));
    SubprocessOptions options;
    options.command = {"lockstep"};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    const std::set<std::string> tools{"bench", "compare", "verify"};
    const bool tool = !arguments.empty() && tools.count(arguments[0]) != 0;
    options.program = tool ? LOCKSTEP_TOOLS : LOCKSTEP_ENGINE;
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    process_.emplace(options);
  }

  pid_t pid() const { return process_->pid(); }
  bool group_alive() { return process_->group_alive(); }
  Ended wait() {
    const ExitStatus status = process_->wait(Deadline::seconds(240));
    return {status.exit_code, status.signal, dir_.read("stdout"), dir_.read("stderr")};
  }

 private:
  const TestDirectory& dir_;
  std::optional<Subprocess> process_;
};

Ended run(const TestDirectory& dir, const Arguments& arguments) {
  return Engine(dir, arguments).wait();
}

// A small data set, so that an epoch takes a fraction of a second.
std::string small_digits(const TestDirectory& dir) {
  data::generate_digits(dir / "digits", {.train = 1024, .test = 200});
  return dir / "digits";
}

Arguments train(const TestDirectory& dir, const std::string& output, const Arguments& more = {}) {
  Arguments arguments{"train",    "mnist",      "--data",  small_digits(dir),
                      "--output", dir / output, "--nproc", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_same_bytes(const TestDirectory& dir, const std::string& a, const std::string& b) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "ranks.safetensors"}) {
    const std::string left = dir.read(a + "/checkpoints/last/" + file);
    EXPECT_FALSE(left.empty()) << file;
    EXPECT_EQ(left == dir.read(b + "/checkpoints/last/" + file), true)
        << file << " of " << a << " and " << b;
  }
}

// Returns the agent's ranks, in order. It has another child, the sentinel, which ends the processes
// that they start if the agent is killed.
std::vector<pid_t> ranks_of(pid_t agent) {
  std::ifstream file("/proc/" + std::to_string(agent) + "/task/" + std::to_string(agent) +
                     "/children");
  std::map<int, pid_t> ranks;
  for (pid_t child = 0; file >> child;) {
    std::ifstream environment("/proc/" + std::to_string(child) + "/environ");
    for (std::string variable; std::getline(environment, variable, '\0');) {
      if (variable.rfind("RANK=", 0) == 0) ranks[std::stoi(variable.substr(5))] = child;
    }
  }
  std::vector<pid_t> result;
  for (const auto& [rank, pid] : ranks) result.push_back(pid);
  return result;
}

TEST(Engine, TwoRunsOfTwoRanksEndInTheSameBitsAndSoDoesAResumedOne) {
  const TestDirectory dir;
  const Ended first = run(dir, train(dir, "a", {"--epochs", "2", "--json", dir / "a.json"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out,
              AllOf(HasSubstr("Trained on 2 ranks (shm, ddp): 16 steps"), HasSubstr("Try next:")));
  EXPECT_THAT(first.err, AllOf(HasSubstr("epoch 2/2: loss "), Not(HasSubstr("\r"))));
  const auto json = nlohmann::json::parse(dir.read("a.json"));
  EXPECT_EQ(json.at("steps"), 16);
  EXPECT_GT(json.at("accuracy").get<double>(), 0.1);

  ASSERT_EQ(run(dir, train(dir, "b", {"--epochs", "2"})).exit_code, 0);
  expect_same_bytes(dir, "a", "b");

  ASSERT_EQ(run(dir, train(dir, "c", {"--epochs", "2", "--max-steps", "11"})).exit_code,
            0);  // with dropout, so generators are compared, too
  const Ended resumed = run(dir, {"train", "mnist", "--output", dir / "c", "--resume",
                                  "--max_steps=0"});  // the other options are recorded
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_bytes(dir, "a", "c");
}

// The launching process has no variables of a launcher, and its ranks have them.
TEST(Engine, EvictionNeedsRestartsOfTheCommandThatStartsTheRanks) {
  const TestDirectory dir;
  const Arguments evicts{"--evict-stragglers", "1000", "--max-steps", "3", "--epochs", "1"};
  const Ended refused = run(dir, train(dir, "a", evicts));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--on-failure replace --max-restarts N, or leave it at 0"));
  Arguments with_restarts = evicts;
  with_restarts.insert(with_restarts.end(), {"--max-restarts", "1"});
  const Ended ended = run(dir, train(dir, "a", with_restarts));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

// Two ranks continue with the parts of four, under another strategy.
TEST(Engine, RanksThatTrainApartGoOnInTheSameBits) {
  const TestDirectory dir;
  const Arguments apart{"--strategy", "diloco", "--diloco-steps", "5", "--epochs", "2"};
  const Ended whole = run(dir, train(dir, "a", apart));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("Trained on 2 ranks (shm, diloco): 16 steps"));
  Arguments part = apart;
  part.insert(part.end(), {"--max-steps", "11"});
  ASSERT_EQ(run(dir, train(dir, "b", part)).exit_code, 0);
  const Ended resumed =
      run(dir, {"train", "mnist", "--output", dir / "b", "--resume", "--max-steps=0"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_same_bytes(dir, "a", "b");
  const Ended evaluated = run(dir, {"eval", "--checkpoint", dir / "a"});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
}

TEST(Engine, OtherRanksGoOn) {
  const TestDirectory dir;
  const Ended four = run(dir, train(dir, "a",
                                    {"--epochs", "1", "--max-steps", "3", "--nproc", "4",
                                     "--strategy", "zero3", "--async-save"}));
  ASSERT_EQ(four.exit_code, 0) << four.err;
  EXPECT_TRUE(
      std::filesystem::exists(dir / "a/checkpoints/last/optimizer-00004-of-00004.safetensors"));
  const Ended two = run(dir, {"train", "mnist", "--output", dir / "a", "--resume", "--nproc", "2",
                              "--strategy", "ddp", "--max-steps", "6"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr("Trained on 2 ranks (shm, ddp): 6 steps"));
  EXPECT_TRUE(std::filesystem::exists(dir / "a/checkpoints/last/optimizer.safetensors"));
  // Three ranks cannot share a step's 128 samples equally.
  const Ended three = run(dir, {"train", "mnist", "--output", dir / "a", "--resume", "--nproc", "3",
                                "--max-steps", "8"});
  ASSERT_EQ(three.exit_code, 0) << three.err;
  EXPECT_THAT(three.out, HasSubstr("Trained on 3 ranks (shm, ddp): 8 steps"));
  const auto state = nlohmann::json::parse(dir.read("a/checkpoints/last/trainer.json"));
  EXPECT_EQ(state.at("samples"), 1024);
}

// One rank continues from a checkpoint of four, with processes and dropout: equal in every byte.
TEST(Engine, LogicalRanksEndInTheSameBytesOnAnyNumberOfRanks) {
  const TestDirectory dir;
  const auto logical = [&](const std::string& output, const std::string& ranks,
                           const std::string& steps) {
    const Ended ended = run(dir, train(dir, output,
                                       {"--epochs", "1", "--max-steps", steps, "--nproc", ranks,
                                        "--strategy", "logical4", "--batch-size", "16"}));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  };
  logical("one", "1", "6");
  logical("two", "2", "6");
  logical("four", "4", "3");
  const Ended resumed = run(dir, {"train", "mnist", "--output", dir / "four", "--resume", "--nproc",
                                  "1", "--max-steps", "6"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  for (const char* other : {"two", "four"}) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
      const auto bytes = [&](const std::string& run) {
        return dir.read(run + "/checkpoints/last/" + file);
      };
      EXPECT_FALSE(bytes("one").empty());
      EXPECT_TRUE(bytes(other) == bytes("one")) << other << ": " << file;
    }
  }
  const Ended three = run(dir, train(dir, "three", {"--nproc", "3", "--strategy", "logical4"}));
  EXPECT_EQ(three.exit_code, 2);
  EXPECT_THAT(three.err, HasSubstr("a power of two up to 4, which share strategy logical4"));
}

TEST(Engine, EvalAndPredictUseTheCheckpoint) {
  const TestDirectory dir;
  ASSERT_EQ(run(dir, train(dir, "a", {"--epochs", "1"})).exit_code, 0);
  const Ended evaluated = run(dir, {"eval", "--checkpoint", dir / "a", "--json", dir / "e.json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("on 200 samples"));
  const auto result = nlohmann::json::parse(dir.read("a/result.json")),
             eval = nlohmann::json::parse(dir.read("e.json"));
  EXPECT_EQ(eval.at("accuracy"), result.at("best_accuracy"));
  EXPECT_EQ(eval.at("classes").size(), 10u);
  const Ended built_in = run(dir, {"eval", "--checkpoint", dir / "a", "--data", "digits"});
  ASSERT_EQ(built_in.exit_code, 0) << built_in.err;
  EXPECT_THAT(built_in.out, HasSubstr("on 2000 samples (the test set of the built-in digits)"));

  const std::string images = dir / "digits/t10k-images-idx3-ubyte";
  const Ended predicted = run(dir, {"predict", "--checkpoint", dir / "a/checkpoints/last", "--file",
                                    images, "--index=3", "--json", dir / "p.json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  EXPECT_THAT(predicted.out, AllOf(HasSubstr("@@"), HasSubstr("Label ")));
  const auto predict = nlohmann::json::parse(dir.read("p.json"));
  EXPECT_EQ(predict.at("logits").size(), 10u);
  double sum = 0;
  for (const double probability : predict.at("probabilities")) sum += probability;
  EXPECT_NEAR(sum, 1, 1e-6);

  EXPECT_EQ(run(dir, {"predict", "--checkpoint", dir / "a", "--file", images, "--index", "200"})
                .exit_code,
            2);
  EXPECT_EQ(run(dir, {"eval", "--checkpoint", dir / "digits"}).exit_code, 2);

  // All commands take a run's folder, also one whose links a copy has left out.
  for (const char* link : {"last", "best"})
    std::filesystem::remove(dir / ("a/checkpoints/" + std::string(link)));
  for (const char* path :
       {"a", "a/checkpoints/last", "a/checkpoints/last/", "a/checkpoints/best"}) {
    EXPECT_EQ(run(dir, {"eval", "--checkpoint", dir / path}).exit_code, 0) << path;
    EXPECT_EQ(run(dir, {"predict", "--checkpoint", dir / path, "--file", images}).exit_code, 0)
        << path;
    EXPECT_EQ(run(dir, {"checkpoint", "inspect", dir / path}).exit_code, 0) << path;
  }
  const Ended begun = run(dir, {"train", "mnist", "--data", dir / "digits", "--output", dir / "b",
                                "--init-from", dir / "a", "--max-steps", "1"});
  EXPECT_EQ(begun.exit_code, 0) << begun.err;
}

TEST(Engine, CifarFromTrainingToPrediction) {
  const TestDirectory dir;
  data::generate_shapes(dir / "shapes", {.train = 200, .test = 50});
  const Arguments train{"train",    "cifar",      "--data",    dir / "shapes",
                        "--output", dir / "c",    "--nproc",   "2",
                        "--model",  "simple-cnn", "--epochs",  "2",
                        "--amp",    "bf16",       "--workers", "2"};
  const Ended first = run(dir, train);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("predict --checkpoint " + (dir / "c").string() + " --file " +
                                   (dir / "shapes/test.bin").string()));
  const auto result = nlohmann::json::parse(dir.read("c/result.json"));
  EXPECT_EQ(result.at("recipe"), "cifar");
  EXPECT_EQ(result.at("model"), "simple-cnn");

  const Ended evaluated = run(dir, {"eval", "--checkpoint", dir / "c", "--json", dir / "e.json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("slanted stripes"));
  const auto eval = nlohmann::json::parse(dir.read("e.json"));
  EXPECT_EQ(eval.at("accuracy"), result.at("best_accuracy"));
  EXPECT_EQ(eval.at("classes")[0].at("name"), "disc");

  const Ended predicted = run(dir, {"predict", "--checkpoint", dir / "c", "--file",
                                    dir / "shapes/test.bin", "--index", "49"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  const std::string file = dir / "shapes/test.bin";  // 50 pictures
  const Ended all = run(dir, {"eval", "--checkpoint", dir / "c", "--data", file});
  EXPECT_THAT(all.out, HasSubstr("on 50 samples (all of " + file + ")")) << all.err;

  dir.write("grey.pgm", "P2 1 1 255 9");
  const Ended refused =
      run(dir, {"predict", "--checkpoint", dir / "c", "--file", dir / "grey.pgm"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("is grey and 1x1; the model takes colour and 32x32"));

  dir.write("shapes/test.bin", dir.read("shapes/test.bin").substr(1));
  const Ended broken = run(dir, train);
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, HasSubstr("test.bin: "));
  EXPECT_EQ(std::count(broken.err.begin(), broken.err.end(), '\n'), 1) << broken.err;
}

// Returns the output of `script`, which runs in `dir`, so that its files are removed with that.
std::string shell(const TestDirectory& dir, const std::string& script) {
  const UniqueFd out(::creat((dir / "stdout").c_str(), 0600));
  SubprocessOptions options;
  options.command = {"sh", "-c", "cd " + shell_word(dir.path().string()) + " && " + script};
  options.stdout_fd = options.stderr_fd = out.get();
  const ExitStatus status = Subprocess(options).wait(Deadline::seconds(240));
  const std::string printed = dir.read("stdout");
  EXPECT_TRUE(status.ok()) << script << "\n" << printed;
  return printed;
}

TEST(Engine, WhatToTryNextCanBePasted) {
  const TestDirectory dir;
  const std::filesystem::path engine = LOCKSTEP_ENGINE;  // <prefix>/libexec/lockstep/...
  const std::string command =
      shell_word((engine.parent_path().parent_path().parent_path() / "bin/lockstep").string());
  data::generate_digits(dir / "my digits", {.train = 256, .test = 5});
  shell(dir, "gzip 'my digits'/*-ubyte");
  data::generate_shapes(dir / "shapes", {.train = 200, .test = 50});
  data::generate_sentences(dir / "sentences", {.train = 100, .dev = 20});
  for (const std::string& options :
       {std::string("mnist --data 'my digits' --output \"it's a run\" --nproc 2"),
        std::string("mnist --data digits --output built-in"),
        std::string("cifar --data ./shapes/train.bin --output \"$PWD/c\" --model simple-cnn"),
        std::string("text --data ./sentences --output texts --batch-size 2 --nproc 2")}) {
    const std::string printed =
        shell(dir, command + " train " + options + " --epochs 1 --max-steps 1");
    const size_t at = printed.find("Try next:\n");
    ASSERT_NE(at, std::string::npos) << printed;
    if (options.starts_with("mnist")) {
      EXPECT_THAT(printed.substr(at), Not(HasSubstr(dir.path().string() + "/")))
          << "paths are from here";
    }
    std::istringstream lines(printed.substr(at));
    int run = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  ")) continue;
      ++run;
      // An epoch of all digits on one rank and on two takes long; of the data set above it has run.
      if (line.find(" compare ") != std::string::npos && line.ends_with(" --data digits")) continue;
      shell(dir, line);
    }
    EXPECT_EQ(run, options.starts_with("mnist") ? 3 : 2) << printed;
  }
}

TEST(Engine, TextsFromTrainingToPrediction) {
  const TestDirectory dir;
  const std::string texts = dir / "texts";
  data::generate_sentences(texts, {.train = 200, .dev = 50});
  const auto train = [&](const Arguments& more) {
    Arguments arguments{"train",   "text", "--data",       texts, "--output", dir / "run",
                        "--nproc", "2",    "--batch-size", "4",   "--quiet"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(dir, arguments);
  };
  ASSERT_EQ(train({"--max-steps", "3"}).exit_code, 0);
  const Ended resumed = train({"--max-steps", "5", "--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto state = nlohmann::json::parse(dir.read("run/checkpoints/last/trainer.json"));
  EXPECT_EQ(state.at("step"), 5);
  EXPECT_THAT(train({"--resume", "--lr", "1"}).err, HasSubstr("lr was 0.0005 and is now 1"));
  // A terminal's commands in a file are shown.
  dir.write("texts.txt", "a\x1b]0;b\x07 c\n");
  const Ended escaped =
      run(dir, {"predict", "--checkpoint", dir / "run", "--file", dir / "texts.txt"});
  EXPECT_EQ(escaped.exit_code, 0) << escaped.err;
  EXPECT_THAT(escaped.out,
              AllOf(HasSubstr("a?]0;b? c"), Not(HasSubstr("\x1b")), Not(HasSubstr("\x07"))));
  // Without --data it evaluates on the training's data.
  const Ended eval = run(dir, {"eval", "--checkpoint", dir / "run", "--json", dir / "eval.json"});
  EXPECT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(nlohmann::json::parse(dir.read("eval.json")).at("samples"), 50);
  const Ended predict = run(dir, {"predict", "--checkpoint", dir / "run", "--text", "今天真高兴"});
  EXPECT_THAT(predict.out, HasSubstr("probability"));
  for (const Arguments& wrong : {Arguments{"--vocab", "/nowhere/vocab.txt"}, {"--model", "huge"}}) {
    Arguments arguments{"train", "text", "--data", "sentences", "--output", dir / "refused"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Ended refused = run(dir, arguments);
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_FALSE(std::filesystem::exists(dir / "refused")) << wrong[0];
  }
}

TEST(Engine, CompareRunsTheExperiment) {
  const TestDirectory dir;
  const Ended ended = run(dir, {"compare", "--scaling", "1,2", "--data", small_digits(dir),
                                "--epochs", "1", "--output", dir / "c", "--json", dir / "c.json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, AllOf(ContainsRegex("Total execution time for 1 ranks: [0-9.]+ seconds\n"),
                               ContainsRegex("Total execution time for 2 ranks: [0-9.]+ seconds\n"),
                               HasSubstr("speed-up")));
  EXPECT_EQ(nlohmann::json::parse(dir.read("c.json")).at("runs").size(), 2u);
  EXPECT_THAT(dir.read("c/scaling.svg"), HasSubstr("</svg>"));
}

TEST(Engine, AKilledRankEndsTheJobAndLeavesNothing) {
  const TestDirectory dir;
  std::set<std::string> before;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    before.insert(entry.path().filename());
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    Engine engine(dir, train(dir, "a", {"--epochs", "1000", "--log-every", "1"}));
    std::vector<pid_t> ranks;
    const auto metrics = dir / "a/metrics.jsonl";
    const auto limit = Deadline::seconds(60);
    std::error_code ignored;
    std::filesystem::remove(metrics, ignored);
    while (!limit.expired() && std::filesystem::file_size(metrics, ignored) + 1 < 1000) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ranks = ranks_of(engine.pid());
    ASSERT_EQ(ranks.size(), 2u);
    const auto start = std::chrono::steady_clock::now();
    ::kill(ranks[victim], SIGKILL);
    const Ended ended = engine.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("rank " + std::to_string(victim)), HasSubstr("SIGKILL"),
                                 HasSubstr("last collective: #")));
    for (const pid_t rank : ranks)
      EXPECT_EQ(::kill(rank, 0), -1) << "rank process " << rank << " is left";
    EXPECT_FALSE(engine.group_alive());
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    EXPECT_FALSE(before.count(name) == 0 && name.rfind("lockstep", 0) == 0) << name;
  }
}

// The timelines end with the rank that dies, and those of the replaced group begin anew.
TEST(Engine, ARankThatIsReplacedLeavesATraceOfTheStepsSince) {
  const TestDirectory dir;
  Engine engine(
      dir, train(dir, "a",
                 {"--epochs", "10", "--max-steps", "120", "--batch-size", "8", "--log-every", "1",
                  "--on-failure", "replace", "--max-restarts", "1", "--trace-steps", "10:110"}));
  const auto logged = [&] {
    const std::string lines = dir.read("a/metrics.jsonl");
    return std::count(lines.begin(), lines.end(), '\n');
  };
  const auto limit = Deadline::seconds(60);
  while (!limit.expired() && logged() < 30)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  const std::vector<pid_t> ranks = ranks_of(engine.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGKILL);
  const Ended ended = engine.wait();
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("rank 1 was replaced"));
  const auto trace = nlohmann::json::parse(dir.read("a/trace.json"));
  const std::string shown = trace.at("otherData").at("steps");
  ASSERT_THAT(shown, ::testing::EndsWith(":110"));
  const int first = std::stoi(shown);
  EXPECT_GT(first, 20) << "some of the thirty lines are of evaluations";
  std::map<int, std::vector<int>> steps;  // by rank
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("name") == "step") steps[event.at("pid")].push_back(event["args"]["number"]);
  ASSERT_EQ(steps.size(), 2u);
  for (const auto& [rank, numbers] : steps) {
    EXPECT_EQ(numbers.size(), static_cast<size_t>(110 - first + 1)) << "rank " << rank;
    EXPECT_EQ(numbers.front(), first) << "rank " << rank;
  }
}

TEST(Engine, ALanguageModelFromTrainingToAPrompt) {
  const TestDirectory dir;
  std::string rows;
  for (int i = 0; i < 200; ++i) rows += "{\"text\": \"one two three four\"}\n";
  dir.write("counting.jsonl", rows);
  const Ended trained = run(dir, {"train", "lm", "--data", dir / "counting.jsonl", "--output",
                                  dir / "l", "--nproc", "2", "--context", "20", "--epochs", "10"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("tokens/s\nDev perplexity 1."), HasSubstr("--prompt 'one two'")));
  const auto result = nlohmann::json::parse(dir.read("l/result.json"));
  EXPECT_LT(result.at("best_perplexity").get<double>(), 1.5);
  EXPECT_FALSE(result.contains("best_accuracy"));

  const Ended evaluated = run(dir, {"eval", "--checkpoint", dir / "l", "--json", dir / "e.json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("by the split of its training file"));
  const auto eval = nlohmann::json::parse(dir.read("e.json"));
  EXPECT_NEAR(eval.at("perplexity"), result.at("best_perplexity"), 1e-4);
  const Ended all = run(dir, {"eval", "--checkpoint", dir / "l", "--data", dir / "counting.jsonl"});
  EXPECT_THAT(all.out, HasSubstr("on 3600 tokens (all of ")) << all.err;

  const Ended said =
      run(dir, {"predict", "--checkpoint", dir / "l", "--prompt", "one t", "--prompt", "three",
                "--temperature", "0", "--json", dir / "p.json"});
  ASSERT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(said.out, "one two three four\nthree four\n");
  EXPECT_EQ(nlohmann::json::parse(dir.read("p.json"))[1].at("text"), " four\n");

  // Only the result is on stdout, if it is written there.
  const Ended piped = run(dir, {"predict", "--checkpoint", dir / "l", "--prompt", "three",
                                "--temperature", "0", "--json", "-"});
  ASSERT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(nlohmann::json::parse(piped.out)[0].at("text"), " four\n");
  EXPECT_THAT(piped.err, HasSubstr("three four"));
  EXPECT_FALSE(std::filesystem::exists("-"));

  // Options override the model's own file for predictions; a run from it keeps the file.
  dir.write("l/checkpoints/best/generation_config.json",
            R"({"do_sample": false, "max_new_tokens": 3})");
  const Ended own = run(dir, {"predict", "--checkpoint", dir / "l/checkpoints/best", "--prompt",
                              "one t", "--json", "-"});
  EXPECT_EQ(nlohmann::json::parse(own.out)[0].at("text"), "wo ") << own.err;
  const Ended longer = run(dir, {"predict", "--checkpoint", dir / "l/checkpoints/best", "--prompt",
                                 "one t", "--max-new-tokens", "5", "--json", "-"});
  EXPECT_EQ(nlohmann::json::parse(longer.out)[0].at("text"), "wo th") << longer.err;
  const Ended again = run(
      dir, {"train", "lm", "--data", dir / "counting.jsonl", "--output", dir / "again", "--model",
            dir / "l/checkpoints/best", "--context", "20", "--max-steps", "1", "--epochs", "1"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(dir.read("again/checkpoints/last/generation_config.json"),
            dir.read("l/checkpoints/best/generation_config.json"));

  const auto refused = [&](const Arguments& more, const std::string& says) {
    Arguments arguments{"predict", "--checkpoint", dir / "l"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = run(dir, arguments);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_EQ(ended.out, "");
    EXPECT_THAT(ended.err, HasSubstr(says));
  };
  refused({"--text", "x"}, "is a language model; give --prompt");
  refused({"--prompt", "X"}, "a character that the vocabulary lacks");
  // They are refused before any output, by the options' names.
  refused({"--prompt", "o", "--top-p", "2"}, "--top-p is 2.0; give more than 0");
  refused({"--prompt", "o", "--temperature", "-1"}, "--temperature is -1.0; give 0 or more");
  refused({"--prompt", "o", "--top-k", "-1"}, "--top-k is -1; give 0");
  refused({"--prompt", "o", "--max-new-tokens", "0"}, "--max-new-tokens is 0; give 1 or more");
  refused({"--prompt", ""}, "--prompt is empty");
  refused({"--prompt", "o", "--prompt", "?"},
          "has \"?\", a character that the vocabulary lacks; it has ");
}

TEST(Engine, BadInputIsOneLineAndExitCodeTwo) {
  const TestDirectory dir;
  const std::string digits = small_digits(dir);
  const auto expect_line = [&](const Arguments& arguments, const std::string& says) {
    const Ended ended = run(dir, arguments);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("lockstep"), HasSubstr(says)));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  };
  expect_line({}, "this program, which has train, eval, predict, diff, checkpoint");
  expect_line({"train"}, "recipe is required");
  expect_line({"train", "mnist", "--data", digits, "--nproc", "0"}, "nproc is 0");
  expect_line(
      train(dir, "o", {"--strategy", "x"}),
      "choose ddp, average, ring, naive-ring, horovod, zero1, zero2, zero3, fsdp, diloco or logical8");
  expect_line({"train", "mnist", "--data", digits, "--nproc", "100000"}, "give at most 1024");
  expect_line(train(dir, "o", {"--no-such"}), "--no-such");
  expect_line(
      train(dir, "o", {"--ema", "0.9", "--on-failure", "replace", "--max-restarts", "1"}),
      "--ema is 0.9, and --on-failure replace puts a new rank in a dead one's place, which would "
      "have no average");
  expect_line(train(dir, "o", {"--resume"}), "no checkpoints/last");
  if (!device::has_nvtx())
    expect_line(train(dir, "o", {"--nvtx"}),
                "nvtx is on, and this libtorch was built without CUDA");
  expect_line({"train", "mnist", "--data", dir / "none", "--output", dir / "o"}, "none");
  expect_line({"predict", "--checkpoint", dir / "none", "--text", "x"}, "none does not exist");
  expect_line({"predict", "--checkpoint", digits, "--text", "x"}, "no checkpoint of a text");
  expect_line({"predict", "--checkpoint", digits, "--text", "a\xff"},
              "--text is not UTF-8 (at byte 1");
  expect_line({"eval", "--checkpont", digits}, "--checkpont (did you mean --checkpoint?)");
  expect_line({"train", "minst", "--data", digits}, "did you mean mnist?");
  expect_line({"checkpoint", "inpsect"}, "did you mean inspect?");
  expect_line({"bench", "colectives"}, "did you mean collectives?");
  expect_line({"verify"}, "give --matrix for all products, or --mesh for one");
  expect_line({"verify", "--matrix", "--zero", "1"}, "are of one product: give --mesh");
  expect_line({"verify", "--matrix", "--tolerance", "inf"}, "--tolerance: give a number from 0 on");
  expect_line({"bench", "collectives", "--backends", "nosuch"}, "'nosuch' is not known");
  const std::string pt = LOCKSTEP_SOURCE_DIR "/tests/fuzz/seeds/pt_fuzz/linear.pt";
  expect_line({"train", "mnist", "--data", digits, "--init-from", pt, "--output", dir / "fresh"},
              "unexpected: bias, weight");
  EXPECT_FALSE(std::filesystem::exists(dir / "fresh"));
  dir.write("c.json", R"({"lr": 1e999})");
  expect_line(train(dir, "o", {"--config", dir / "c.json"}), "1e999 is out of range");
  dir.write("c.json", R"({"momentun": 1})");
  expect_line(train(dir, "o", {"--config", dir / "c.json"}),
              "unknown key 'momentun'; did you mean 'momentum'?");

  std::string labels = dir.read("digits/train-labels-idx1-ubyte");
  labels[8 + 77] = 10;
  dir.write("digits/train-labels-idx1-ubyte", labels);
  expect_line({"train", "mnist", "--data", digits, "--output", dir / "o"}, "77");
  dir.write("digits/train-labels-idx1-ubyte", labels.substr(0, 500));
  expect_line({"train", "mnist", "--data", digits, "--output", dir / "o"},
              "train-labels-idx1-ubyte");
  EXPECT_FALSE(std::filesystem::exists(dir / "o"));  // nothing was written to it
}

TEST(Engine, OutputThatCannotBeWrittenIsAFailure) {
  const TestDirectory dir;
  SubprocessOptions options;
  options.command = {"lockstep", "train", "--help"};
  options.program = LOCKSTEP_ENGINE;
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC)),
      err(::creat((dir / "stderr").c_str(), 0600));
  options.stdout_fd = full.get();
  options.stderr_fd = err.get();
  EXPECT_EQ(Subprocess(options).wait(Deadline::seconds(60)).exit_code, 1);
  EXPECT_EQ(dir.read("stderr"),
            "lockstep train: stdout cannot be written: No space left on device\n");
}

// A file system that is mounted while the object lives.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path at, const std::string& size) : at_(std::move(at)) {
    std::filesystem::create_directory(at_);
    mounted_ = ::mount("tmpfs", at_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path at_;
  bool mounted_ = false;
};

TEST(Engine, AFullDiskIsOneLineThatNamesTheFile) {
  const TestDirectory dir;
  // There is room for the checks before the first step, not for a checkpoint, which rank 0 writes
  // while all ranks wait for it.
  const SmallDisk disk(dir / "small", "2m");
  if (!disk.mounted()) GTEST_SKIP() << "no tmpfs can be mounted: " << std::strerror(errno);
  const Ended ended = run(dir, train(dir, "small", {"--epochs", "2", "--batch-size", "4"}));
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  std::istringstream lines(ended.err);
  std::vector<std::string> told;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("epoch ") && !line.starts_with("Memory of a rank, "))
      told.push_back(line);
  }
  ASSERT_EQ(told.size(), 1u) << ended.err;
  EXPECT_THAT(told[0],
              AllOf(::testing::StartsWith("lockstep train: cannot write "),
                    HasSubstr((dir / "small").string()),
                    HasSubstr("No space left on device; make room there, then start again with: "),
                    HasSubstr(" train mnist --data ")));
}

TEST(Engine, ASignalLeavesOneLineWithTheCommandThatGoesOn) {
  for (const auto& [ranks, signal] : {std::pair("1", SIGINT), std::pair("2", SIGINT)}) {
    const TestDirectory dir;
    Engine engine(dir, train(dir, "a", {"--nproc", ranks, "--epochs", "1000", "--seed", "7"}));
    const auto limit = Deadline::seconds(120);
    while (!limit.expired() && !checkpoint_exists(dir / "a/checkpoints/last"))
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ::kill(engine.pid(), signal);
    const Ended ended = engine.wait();
    EXPECT_EQ(ended.exit_code, 128 + signal);
    EXPECT_EQ(ended.out, "");
    std::istringstream lines(ended.err);
    std::string told;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("epoch ") && !line.starts_with("Memory of a rank, ")) told += line;
    }
    const std::string before = "lockstep train: stopped by SIGINT; the last checkpoint is " +
                               (dir / "a/checkpoints/last").string();
    ASSERT_THAT(told, ::testing::StartsWith(before)) << "and nothing else";
    const std::string go_on = "go on with: ";
    ASSERT_THAT(told, AllOf(HasSubstr(go_on), ::testing::EndsWith(" --resume")));
    const auto last = read_checkpoint(dir / "a/checkpoints/last");
    const auto step = nlohmann::json::parse(last.trainer_json).at("step").get<int>();
    // A rank alone continues while its line is written.
    const int told_step = std::stoi(told.substr(told.find("(step ") + 6));
    EXPECT_TRUE(told_step == step || (ranks == std::string("1") && told_step < step)) << told;
    // It runs as a user's would, but not for a thousand epochs.
    const std::string command = told.substr(told.find(go_on) + go_on.size()) + " --max-steps " +
                                std::to_string(step + 3) + " > " + (dir / "out").string() + " 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command << dir.read("out");
    EXPECT_THAT(dir.read("out"), HasSubstr(std::to_string(step + 3) + " steps"));
  }
}

// A scheduler's signal ends the run at a step boundary with a checkpoint, exit code 0 and a note;
// and the run that continues ends like an undisturbed one, in every bit.
TEST(Engine, SigtermAndSigusr1SaveAtAStepBoundaryAndTheRunThatGoesOnIsThatOfNoSignal) {
  const Arguments settings{"--epochs", "5", "--batch-size", "4", "--log-every", "5", "--seed", "7"};
  for (const auto& [ranks, signal] : {std::pair("1", SIGTERM), std::pair("2", SIGUSR1)}) {
    const TestDirectory dir;
    Arguments arguments{"--nproc", ranks};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    ASSERT_EQ(run(dir, train(dir, "whole", arguments)).exit_code, 0);
    EXPECT_FALSE(read_requeue_note(dir / "whole"));

    Engine engine(dir, train(dir, "a", arguments));
    const auto limit = Deadline::seconds(120);
    // A line of metrics shows that steps were done.
    while (!limit.expired() && (!std::filesystem::exists(dir / "a/metrics.jsonl") ||
                                std::filesystem::file_size(dir / "a/metrics.jsonl") == 0))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(engine.pid(), signal);
    const Ended ended = engine.wait();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.out, "");
    const auto note = read_requeue_note(dir / "a");
    ASSERT_TRUE(note) << ended.err;
    EXPECT_EQ(note->signal, signal);
    EXPECT_EQ(note->checkpoint, dir / "a/checkpoints/last");
    const auto last = read_checkpoint(dir / "a/checkpoints/last");
    EXPECT_EQ(nlohmann::json::parse(last.trainer_json).at("step").get<int64_t>(), note->step);
    EXPECT_THAT(ended.err, HasSubstr("lockstep train: stopped by " +
                                     std::string(signal == SIGTERM ? "SIGTERM" : "SIGUSR1") +
                                     " after step " + std::to_string(note->step) + ", saved in " +
                                     (dir / "a/checkpoints/last").string() +
                                     "; the same command with --resume goes on\n"));
    const auto result = nlohmann::json::parse(dir.read("a/result.json"));
    EXPECT_EQ(result.at("stopped_by"), signal == SIGTERM ? "SIGTERM" : "SIGUSR1");

    Arguments again = train(dir, "a", arguments);
    again.push_back("--resume");
    ASSERT_EQ(run(dir, again).exit_code, 0);
    EXPECT_FALSE(read_requeue_note(dir / "a")) << "it is done";
    expect_same_bytes(dir, "whole", "a");
  }
}

TEST(Engine, ACheckpointOfAnotherShapeIsRefused) {
  const TestDirectory dir;
  ASSERT_EQ(run(dir, train(dir, "a", {"--epochs", "1", "--max-steps", "1"})).exit_code, 0);
  auto checkpoint = read_checkpoint(dir / "a/checkpoints/last");
  checkpoint.model.tensors.pop_back();
  write_checkpoint(dir / "bad", checkpoint);
  const Ended ended = run(dir, {"eval", "--checkpoint", dir / "bad"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("does not fit the model"), HasSubstr("missing: fc2.weight")));
}

}  // namespace lockstep::inline v0::engine::engine_mp_test
