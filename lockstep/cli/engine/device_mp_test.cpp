// Runs the commands on CUDA devices that the host simulates, as on a machine with GPUs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/data/digits.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/testing/preloaded.h"
#include "lockstep/tokenizers/characters.h"
#include "lockstep/train/run_state.h"

namespace lockstep::inline v0::engine::device_mp_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int exit_code = 0;
  std::string out, err;
};

class EngineOnDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the sanitizers' library comes before all that is preloaded";
    data::generate_digits(dir_ / "digits", {.train = 512, .test = 100});
  }

  // Runs it with that number of devices. `fault`: LOCKSTEP_FAKE_CUDA_FAULT.
  Ended run(int devices, const Arguments& arguments, const char* program = LOCKSTEP_ENGINE,
            const std::string& fault = "") const {
    const UniqueFd out(::creat((dir_ / "stdout").c_str(), 0600)),
        err(::creat((dir_ / "stderr").c_str(), 0600));
    SubprocessOptions options;
    options.command = {"lockstep"};
    options.command.insert(options.command.end(), arguments.begin(), arguments.end());
    options.program = program;
    std::vector<std::string> more =
        testing::fake_device_variables(LOCKSTEP_FAKE_CUDA_PRELOAD, devices);
    if (!fault.empty()) more.push_back("LOCKSTEP_FAKE_CUDA_FAULT=" + fault);
    options.env = testing::environment_with(more);
    options.stdout_fd = out.get();
    options.stderr_fd = err.get();
    Subprocess process(options);
    const ExitStatus status = process.wait(Deadline::seconds(240));
    return {status.signal == 0 ? status.exit_code : -status.signal, dir_.read("stdout"),
            dir_.read("stderr")};
  }

  Arguments train(const std::string& output, const Arguments& more) const {
    Arguments arguments{"train",     "mnist",       "--data",   dir_ / "digits",
                        "--output",  dir_ / output, "--epochs", "1",
                        "--dropout", "0",           "--json",   dir_ / (output + ".json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // Texts of few letters, which take no time to evaluate.
  std::string letters() const {
    std::string rows;
    for (int i = 0; i < 60; ++i)
      rows += "{\"text\": \"" + std::string(static_cast<size_t>(2 + i * 7 % 11), "abcde"[i % 5]) +
              "f\"}\n";
    dir_.write("train.jsonl", rows);
    return dir_ / "train.jsonl";
  }
  json result(const std::string& output) const { return json::parse(dir_.read(output + ".json")); }

  TestDirectory dir_;
};

TEST_F(EngineOnDevices, TrainAndEvalGiveTheCpusNumbers) {
  const Ended cpu = run(2, train("cpu", {"--nproc", "2", "--device", "cpu"}));
  ASSERT_EQ(cpu.exit_code, 0) << cpu.err;
  const Ended cuda = run(2, train("cuda", {"--nproc", "2", "--device", "cuda"}));
  ASSERT_EQ(cuda.exit_code, 0) << cuda.err;
  EXPECT_THAT(cuda.err, Not(HasSubstr("race"))) << cuda.err;
  EXPECT_THAT(cuda.out, HasSubstr("cuda:0"));
  for (const char* name : {"loss", "test_loss"}) {
    EXPECT_NEAR(result("cuda").at(name).get<double>(), result("cpu").at(name).get<double>(), 1e-4)
        << name;
  }
  // A model that was trained on one device is evaluated on the other.
  const Ended eval = run(
      1, {"eval", "--checkpoint", dir_ / "cuda", "--device", "auto", "--json", dir_ / "eval.json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_NEAR(json::parse(dir_.read("eval.json")).at("loss").get<double>(),
              result("cuda").at("test_loss").get<double>(), 1e-5);
}

// The other ways and recipes, for a few steps. `near` is the tolerance of the losses where there is
// dropout.
struct Way {
  const char* name;
  Arguments arguments;
  double near = 1e-4;
  const char* ranks = "2";
};
class EngineWays : public EngineOnDevices, public ::testing::WithParamInterface<Way> {};

TEST_P(EngineWays, GiveTheCpusNumbers) {
  for (const char* device : {"cpu", "cuda"}) {
    Arguments arguments{"train",       GetParam().arguments.front(),
                        "--output",    dir_ / device,
                        "--json",      dir_ / (std::string(device) + ".json"),
                        "--device",    device,
                        "--nproc",     GetParam().ranks,
                        "--epochs",    "1",
                        "--max-steps", "3"};
    arguments.insert(arguments.end(), GetParam().arguments.begin() + 1, GetParam().arguments.end());
    std::replace(arguments.begin(), arguments.end(), std::string("letters"), letters());
    const Ended ended = run(std::stoi(GetParam().ranks), arguments);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.err, Not(HasSubstr("race")));
  }
  EXPECT_NEAR(result("cuda").at("loss").get<double>(), result("cpu").at("loss").get<double>(),
              GetParam().near);
}

INSTANTIATE_TEST_SUITE_P(
    Of, EngineWays,
    ::testing::Values(
        Way{"ring", {"mnist", "--data", "digits", "--dropout", "0", "--strategy", "ring"}},
        Way{"horovod", {"mnist", "--data", "digits", "--dropout", "0", "--strategy", "horovod"}},
        Way{"logical", {"mnist", "--data", "digits", "--dropout", "0", "--strategy", "logical4"}},
        Way{"zero2", {"mnist", "--data", "digits", "--dropout", "0", "--strategy", "zero2"}},
        Way{"lm", {"lm", "--data", "sentences", "--dropout", "0", "--strategy", "zero1"}},
        Way{"lm_zero3", {"lm", "--data", "letters", "--dropout", "0", "--strategy", "zero3"}},
        Way{"lm_offload",
            {"lm", "--data", "letters", "--dropout", "0", "--gradient-checkpointing",
             "--offload-checkpoints"}},
        Way{"text_fsdp",
            {"text", "--data", "sentences", "--strategy", "fsdp", "--batch-size", "4"},
            0.1},
        Way{"pipe", {"lm", "--data", "letters", "--dropout", "0.1", "--mesh", "pipe=2"}},
        Way{"tensor", {"lm", "--data", "letters", "--amp", "bf16", "--mesh", "tensor=2"}, 1e-2},
        Way{"context", {"lm", "--data", "letters", "--mesh", "context=2"}},
        Way{"products",
            {"lm", "--data", "letters", "--mesh", "pipe=2,tensor=2", "--batch-size", "4"},
            1e-4,
            "4"},
        Way{"copies",
            {"lm", "--data", "letters", "--dropout", "0", "--mesh", "data=2,shard=2", "--strategy",
             "zero3"},
            1e-4,
            "4"},
        Way{"products_zero3",
            {"lm", "--data", "letters", "--dropout", "0", "--mesh", "tensor=2,data=2", "--strategy",
             "zero3"},
            1e-4,
            "4"},
        Way{"text", {"text", "--data", "sentences", "--amp", "bf16", "--batch-size", "4"}, 0.1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(EngineOnDevices, ARankWhoseDeviceFailsGoesOnOnASpareOne) {
  const Arguments replace = {"--nproc",      "2",       "--device",       "cuda",
                             "--on-failure", "replace", "--max-restarts", "1",
                             "--batch-size", "32"};
  const Ended quiet = run(3, train("quiet", replace));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  const Ended failed = run(3, train("failed", replace), LOCKSTEP_ENGINE, "1:300");
  ASSERT_EQ(failed.exit_code, 0) << failed.err;
  EXPECT_THAT(failed.err,
              AllOf(HasSubstr("rank 1 lost its device cuda:1: CUDA error: an illegal memory access "
                              "was encountered; if it is started again"),
                    HasSubstr("it is started again, 1 of 1"), HasSubstr("rank 1 was replaced")));
  EXPECT_EQ(dir_.read("failed/checkpoints/last/model.safetensors"),
            dir_.read("quiet/checkpoints/last/model.safetensors"));
  // Without a spare device it meets the same fault, and the report names it.
  const Ended again = run(2, train("again", replace), LOCKSTEP_ENGINE, "1:200");
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, AllOf(HasSubstr("it is started again, 1 of 1"),
                               HasSubstr("error: CUDA error: an illegal memory access")));
}

// Two ranks share one device; then the run continues on the CPU.
TEST_F(EngineOnDevices, ARunGoesOnOnAnotherDevice) {
  const Ended first =
      run(1, train("run", {"--nproc", "2", "--device", "cuda", "--max-steps", "3"}));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended then = run(1, {"train", "mnist", "--output", dir_ / "run", "--resume", "--max-steps",
                             "0", "--device", "cpu"});
  ASSERT_EQ(then.exit_code, 0) << then.err;
  ASSERT_EQ(run(1, train("whole", {"--nproc", "2", "--device", "cpu"})).exit_code, 0);
  const Ended eval = run(1, {"eval", "--checkpoint", dir_ / "run", "--json", dir_ / "run.json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_NEAR(result("run").at("loss").get<double>(), result("whole").at("test_loss").get<double>(),
              1e-4);
}

// Each way trains as it does alone; EngineWays has the numbers of the CPU.
TEST_F(EngineOnDevices, WaysAreComparedAndMeasured) {
  const Ended compared =
      run(2,
          {"compare", "mnist", "--strategies", "single,ddp,zero1", "--data", dir_ / "digits",
           "--max-steps", "2", "--epochs", "1", "--device", "cuda", "--output", dir_ / "compare"},
          LOCKSTEP_TOOLS);
  ASSERT_EQ(compared.exit_code, 0) << compared.out << compared.err;
  EXPECT_THAT(compared.out, AllOf(HasSubstr("single"), HasSubstr("zero1")));
  EXPECT_THAT(compared.err, Not(HasSubstr("race")));
  const Ended measured =
      run(2,
          {"bench", "step", "--strategy", "ddp,zero3,single", "--batch", "2", "--rounds", "1",
           "--turn-ms", "1", "--device", "cuda", "--json", dir_ / "step.json"},
          LOCKSTEP_TOOLS);
  ASSERT_EQ(measured.exit_code, 0) << measured.out << measured.err;
  EXPECT_THAT(measured.err, Not(HasSubstr("race")));
  EXPECT_EQ(json::parse(dir_.read("step.json")).size(), 3U);
}

TEST_F(EngineOnDevices, DividedExpertsGiveTheCpusNumbers) {
  LmConfig config;
  config.vocab_size = 7;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_local_experts = 4;
  config.router_aux_loss_coef = 0.01;
  config.max_position_embeddings = 8;
  config.bos_token_id.reset();
  config.eos_token_ids = {0};
  torch::manual_seed(3);
  save_model(*TransformerLm(config),
             {.config_json = to_json(config),
              .others = tokenizers::Characters::of("abcdef\n", "t").files()},
             dir_ / "model");
  for (const char* device : {"cpu", "cuda"}) {
    const Ended ended = run(2, {"train",        "lm",
                                "--data",       letters(),
                                "--model",      dir_ / "model",
                                "--mesh",       "expert=2",
                                "--epochs",     "1",
                                "--context",    "8",
                                "--batch-size", "4",
                                "--output",     dir_ / device,
                                "--device",     device,
                                "--json",       dir_ / (std::string(device) + ".json")});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.err, Not(HasSubstr("race")));
  }
  for (const char* name : {"loss", "test_loss"})
    EXPECT_NEAR(result("cuda").at(name).get<double>(), result("cpu").at(name).get<double>(), 1e-4)
        << name;
}

// A run that divides the model does so, too, from devices to the host.
TEST_F(EngineOnDevices, ADividedRunGoesOnOnTheHost) {
  const auto train_lm = [&](const std::string& output, const Arguments& more) {
    Arguments arguments{"train",       "lm",     "--data",    letters(), "--output",
                        dir_ / output, "--mesh", "pipe=2",    "--json",  dir_ / (output + ".json"),
                        "--epochs",    "1",      "--dropout", "0.1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(2, arguments);
  };
  const Ended first = train_lm("run", {"--max-steps", "2", "--device", "cuda"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Ended then = run(2, {"train", "lm", "--output", dir_ / "run", "--resume", "--max-steps",
                             "4", "--device", "cpu", "--json", dir_ / "run.json"});
  ASSERT_EQ(then.exit_code, 0) << then.err;
  ASSERT_EQ(train_lm("whole", {"--max-steps", "4", "--device", "cpu"}).exit_code, 0);
  EXPECT_NEAR(result("run").at("test_loss").get<double>(),
              result("whole").at("test_loss").get<double>(), 1e-4);
}

TEST_F(EngineOnDevices, WhatCannotBeIsSaidBeforeTheRanksStart) {
  const Ended missing = run(1, train("run", {"--device", "cuda:1"}));
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("--device 'cuda:1'"), HasSubstr("cuda:0")));
  const Ended unknown = run(1, train("run", {"--device", "gpu"}));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--device is 'gpu'; give cpu, cuda, cuda:N or auto"));
  const Ended shared = run(1, train("run", {"--device", "cuda", "--strategy", "zero3", "--mesh",
                                            "data=1,shard=2", "--nproc", "2"}));
  EXPECT_EQ(shared.exit_code, 2);
  EXPECT_THAT(shared.err, HasSubstr("--mesh is 'data=1,shard=2'; give none on devices"));
}

}  // namespace
}  // namespace lockstep::inline v0::engine::device_mp_test
