// `lockstep plan --model ...`: its tables, JSON, pictures and exit codes, and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/cli/plan/command.h"
#include "lockstep/cli/plan/job_report.h"
#include "lockstep/cli/usage.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0::cli {
namespace plan_job_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

const Words kJob{"--model",    "llama3-8b", "--gpus",         "64",
                 "--hardware", "h100",      "--global-batch", "512"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

JobPlan planned(const Words& words) {
  PlanFlags flags;
  PlanParser parser(flags);
  parser.parse(words);
  return plan_job(flags, parser);
}

std::string refusal_of(const Words& words) {
  const std::string line = message_of<InvalidArgument>([&] { plan_command(words); });
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  return line;
}

std::string printed(const Words& words, int code = 0) {
  testing::internal::CaptureStdout();
  const int found = plan_command(words);
  const std::string text = testing::internal::GetCapturedStdout();
  EXPECT_EQ(found, code) << text;
  return text;
}

TEST(PlanJob, TheBestLayoutsAndWhyTheOthersLose) {
  const std::string text = printed(kJob);
  EXPECT_THAT(text, StartsWith("llama3-8b, 8.03 G parameters; 64 ranks of h100; 512 sequences of "
                               "4096 tokens a step; bfloat16, adamw; stack lockstep\n"));
  EXPECT_THAT(text, HasSubstr("mesh"));
  EXPECT_THAT(text, HasSubstr("tokens/s/rank"));
  EXPECT_THAT(text, HasSubstr("Why they lose against 1:\n2: "));
}

// Columns that do not fit are left out, the least important ones first.
TEST(PlanJob, StaysWithinItsColumns) {
  const JobPlan job = planned(with(kJob, {"--straggler", "1.2", "--slow-link", "between=0.5"}));
  for (const size_t columns : {72, 90, 120, 200}) {
    const std::string text = text_of(job, columns);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(display_width(line), std::max<size_t>(columns, 88)) << line;
    EXPECT_EQ(text.find("MFU") != std::string::npos, columns > 130) << columns;
    EXPECT_THAT(text, HasSubstr("memory"));
  }
}

TEST(PlanJob, OneLayoutPartByPart) {
  const std::string text = printed({"--model", "llama3-8b", "--hardware", "h100", "--global-batch",
                                    "64", "--mesh", "data=4,pipe=2,tensor=2", "--zero", "1",
                                    "--micro-batch", "1", "--activations", "recomputed"});
  EXPECT_THAT(text, HasSubstr("data=4 pipe=2 tensor=2, 1f1b, zero 1, micro-batch 1 x 16, "
                              "recomputed\nfits: data=4,pipe=2,tensor=2 takes "));
  EXPECT_THAT(text, HasSubstr("memory of a rank"));
  EXPECT_THAT(text, HasSubstr("stage 1"));
  EXPECT_THAT(text, HasSubstr("recomputation"));
  EXPECT_THAT(text, HasSubstr("by 6n+attention"));
  EXPECT_THAT(text, HasSubstr("What it loses most by:\n"));
}

TEST(PlanJob, FitsIsALineAndAnExitCode) {
  const Words small{"--model", "llama3-8b", "--hardware", "h100", "--global-batch", "64", "--fits"};
  EXPECT_THAT(printed(with(small, {"--mesh", "data=8", "--zero", "3"})),
              MatchesRegex("fits: data=8 takes [0-9.]+ GiB of 79.1 GiB, [0-9.]+ GiB are left\n"));
  EXPECT_THAT(printed(with(small, {"--mesh", "data=8", "--micro-batch", "8"}), 1),
              MatchesRegex("does not fit: data=8 takes [0-9]+ GiB of 79.1 GiB; stage 0 does not "
                           "fit by [0-9.]+ GiB\n"));
  EXPECT_THAT(printed(with(small, {"--gpus", "8"})), StartsWith("fits: "));
  EXPECT_THAT(printed({"--model", "deepseek-v3", "--hardware", "a100-40", "--global-batch", "64",
                       "--gpus", "8", "--fits"},
                      1),
              MatchesRegex("does not fit: none of [0-9,]+ layouts; of the nearest, .* does not "
                           "fit by [0-9.]+ GiB\n"));
}

TEST(PlanJob, WritesJsonAndAPicture) {
  const TestDirectory folder;
  printed(with(
      kJob, {"--json", (folder / "plan.json").string(), "--svg", (folder / "plan.svg").string(),
             "--top", "3", "--rank-mtbf", "50000", "--checkpoint-stall", "20", "--restart", "300",
             "--tokens", "1e12", "--price", "2.5", "--slow-link", "between=25GB/s"}));
  const auto json = nlohmann::json::parse(folder.read("plan.json"));
  EXPECT_EQ(json["model"], "llama3-8b");
  EXPECT_EQ(json["parameters"], 8030261248);
  EXPECT_EQ(json["ranks"], 64);
  ASSERT_EQ(json["best"].size(), 3u);
  const auto& best = json["best"][0];
  EXPECT_TRUE(best["fits"]);
  EXPECT_FALSE(best.contains("loses"));
  EXPECT_TRUE(json["best"][1].contains("loses"));
  const double tokens = 512.0 * 4096;
  EXPECT_NEAR(best["tokens_per_s"].get<double>() * best["step_s"].get<double>(), tokens,
              1e-6 * tokens);
  double parts = 0;
  for (const auto& [name, seconds] : best["time_s"].items())
    if (name != "total") parts += seconds.get<double>();
  EXPECT_NEAR(parts, best["step_s"].get<double>(), 1e-9 * parts);
  const auto& what = json["what_if"];
  EXPECT_GE(what["variations"][0]["step_s"].get<double>(), best["step_s"].get<double>());
  EXPECT_NEAR(what["goodput"]["mtbf_s"].get<double>(), 50000.0 * 3600 / 64, 1e-6);
  EXPECT_NEAR(what["cost"]["price"].get<double>(), what["cost"]["rank_hours"].get<double>() * 2.5,
              1e-6);
  const std::string svg = folder.read("plan.svg");
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_THAT(svg, AllOf(HasSubstr("Memory of the fullest rank; a rank has 79.1 GiB"),
                         HasSubstr("Time of a step")));
}

TEST(PlanJob, APipelinesPictureHasItsSchedule) {
  const std::string svg =
      job_svg(planned({"--model", "llama3-8b", "--hardware", "h100", "--global-batch", "64",
                       "--mesh", "data=4,pipe=4", "--schedule", "zb-h1", "--zero", "1"}));
  EXPECT_THAT(svg, HasSubstr("zb-h1: 4 stages, 8 micro-batches"));
}

TEST(PlanJob, FailuresAndPricesInWords) {
  const Words one{"--model", "llama3-8b", "--hardware", "h100",   "--global-batch",
                  "512",     "--mesh",    "data=64",    "--zero", "1"};
  const std::string text =
      printed(with(one, {"--rank-mtbf", "32000", "--checkpoint-stall", "10", "--restart", "360",
                         "--tokens", "15e12", "--price", "2"}));
  // 500 h between failures, of which sqrt(2 * 10 * 1.8e6) = 6000 s between checkpoints.
  EXPECT_THAT(text, HasSubstr("A failure each 500 h 00 min of the job; a checkpoint each 1 h 39 "
                              "min of training. 99.6 % of the time is"));
  // A run that stopped so long for a checkpoint says the same.
  const TestDirectory run;
  run.write("metrics.jsonl", "{\"step\":1,\"checkpoint_s\":10.0}\n");
  EXPECT_EQ(printed(with(one, {"--rank-mtbf", "32000", "--checkpoint-stall", run.path().string(),
                               "--restart", "360", "--tokens", "15e12", "--price", "2"})),
            text);
  EXPECT_THAT(text, HasSubstr("15.0 T tokens: "));
  EXPECT_THAT(text, HasSubstr("at 2.00 an hour"));
  EXPECT_THAT(printed(with(
                  one, {"--rank-mtbf", "10", "--in-place", "--restart", "600", "--tokens", "1e9"})),
              HasSubstr("the others go on in place. 0.0 % of the time is training that lasts"));
}

TEST(PlanJob, MeshesAreRead) {
  plan::Layout layout;
  read_mesh("pipe=2,data,tensor=4", 32, &layout);
  EXPECT_EQ(layout.data, 4);
  EXPECT_EQ(layout.pipe, 2);
  EXPECT_THAT(layout.order, testing::ElementsAre("context", "expert", "pipe", "data", "tensor"));
  EXPECT_EQ(mesh_text(layout), "pipe=2,data=4,tensor=4");
  plan::Layout sharded;
  read_mesh("data=2,shard=8", 0, &sharded);
  EXPECT_EQ(sharded.data, 16);
  EXPECT_EQ(sharded.shard_ranks, 8);
  EXPECT_EQ(mesh_text(sharded), "data=2,shard=8");
  EXPECT_EQ(mesh_text({}), "data=1");
}

TEST(PlanJob, ListsWhatIsKnown) {
  EXPECT_THAT(printed({"--list"}), AllOf(HasSubstr("h100 "), HasSubstr("llama3-8b"),
                                         HasSubstr("6n+attention"), HasSubstr("stacks: lockstep")));
}

// An emulated bfloat16 is measured, and is no reason to use it.
TEST(PlanJob, ThePrecisionIsTheFasterOneUnlessItIsGiven) {
  const TestDirectory folder;
  plan::Machine machine = plan::known_machine("xeon-8480");
  machine.bfloat16 = machine.float32 / 20;
  const std::string file = folder.write("machine.json", plan::to_json(machine));
  const Words job{"--model", "gpt2", "--gpus", "2", "--global-batch", "8", "--hardware"};
  EXPECT_EQ(planned(with(job, {file})).request.job.precision, plan::Precision::kFloat32);
  EXPECT_EQ(planned(with(job, {file, "--precision", "bf16"})).request.job.precision,
            plan::Precision::kBFloat16);
  EXPECT_EQ(planned(with(job, {"h100"})).request.job.precision, plan::Precision::kBFloat16);
}

TEST(PlanJob, AModelsFileIsRead) {
  const TestDirectory folder;
  folder.write("config.json",
               R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 256})");
  const Words rest{"--hardware", "xeon-8480", "--gpus", "2", "--global-batch", "8", "--fits"};
  for (const std::string& model : {(folder / "config.json").string(), folder.path().string()})
    EXPECT_THAT(printed(with({"--model", model}, rest)), StartsWith("fits: "));
  folder.write("config.json", "{\"model_type\": \"llama\"");
  EXPECT_THAT(refusal_of(with({"--model", (folder / "config.json").string()}, rest)),
              HasSubstr("config.json"));
}

TEST(PlanJob, MistakesAreOneLine) {
  const auto without = [](const std::string& option) {
    Words words;
    for (size_t i = 0; i < kJob.size(); i += 2)
      if (kJob[i] != option) words.insert(words.end(), {kJob[i], kJob[i + 1]});
    return words;
  };
  const auto instead = [&](const std::string& option, const std::string& value) {
    return refusal_of(with(without(option), {option, value}));
  };
  for (const auto& [option, value] :
       {std::pair{"--model", "llama3-9b"}, std::pair{"--hardware", "h101"},
        std::pair{"--stack", "nemmo"}, std::pair{"--flops", "6m"}})
    EXPECT_THAT(instead(option, value), AllOf(StartsWith(option), HasSubstr("did you mean ")));
  EXPECT_THAT(refusal_of(without("--model")), StartsWith("--model is required"));
  EXPECT_THAT(refusal_of(without("--hardware")), StartsWith("--hardware is required: one of"));
  EXPECT_THAT(refusal_of(without("--gpus")), StartsWith("--gpus is required"));
  EXPECT_THAT(refusal_of(without("--global-batch")), StartsWith("--global-batch is required"));
  EXPECT_THAT(instead("--model", "/nowhere/config.json"), HasSubstr("/nowhere/config.json"));
  EXPECT_THAT(instead("--model", "/tmp"), HasSubstr("config.json"))
      << "a folder without a model's config";
  EXPECT_THAT(instead("--hardware", "/nowhere/machine.json"), HasSubstr("/nowhere/machine.json"));
  EXPECT_THAT(instead("--gpus", "-3"), HasSubstr("--gpus"));
  EXPECT_THAT(instead("--gpus", "509"), HasSubstr("no layout divides model llama3-8b and 512"));
  EXPECT_THAT(instead("--global-batch", "0"), HasSubstr("--global-batch is '0'; give 1 to"));
  EXPECT_THAT(instead("--precision", "fp17"), HasSubstr("precision 'fp17'"));
  const auto mesh = [&](const std::string& text) {
    return refusal_of(with(kJob, {"--mesh", text}));
  };
  EXPECT_THAT(mesh("data=3"), HasSubstr("these are 3 ranks, and --gpus is 64"));
  EXPECT_THAT(mesh("data,pipe"), HasSubstr("two axes have no number"));
  EXPECT_THAT(mesh("data,pipe=5"), HasSubstr("64 ranks do not divide by 5"));
  EXPECT_THAT(mesh("date=64"), HasSubstr("there is no axis 'date' (did you mean data?)"));
  EXPECT_THAT(mesh("data=64,data=1"), HasSubstr("names data twice"));
  EXPECT_THAT(mesh("data=0"), HasSubstr("give data a number of ranks from 1 on"));
  EXPECT_THAT(mesh("data=8,pipe=-8"), HasSubstr("give pipe a number of ranks from 1 on"));
  EXPECT_THAT(mesh("data=99999999999999999999"), HasSubstr("from 1 on"));
  EXPECT_THAT(mesh("data=4194304,pipe=4194304"), HasSubstr("more than 4194304 ranks"));
  EXPECT_THAT(mesh("pipe=64"), HasSubstr("64 chunks, and the model has 32 layers"));
  EXPECT_THAT(mesh("tensor=64"), HasSubstr("32 heads do not divide among 64"));
  EXPECT_THAT(mesh("expert=64"), HasSubstr("the model has no experts"));
  EXPECT_THAT(mesh("shard=8,data=8"), HasSubstr("shard stands behind data alone"));
  EXPECT_THAT(refusal_of({"--model", "gpt2", "--hardware", "h100", "--global-batch", "8", "--mesh",
                          "data=2,pipe=2", "--zero", "2"}),
              HasSubstr("zero 2 and tied embeddings do not go together"));
  const auto more = [&](const Words& words) { return refusal_of(with(kJob, words)); };
  EXPECT_THAT(more({"--stages", "4"}),
              HasSubstr("--stages is of a pipeline's schedule alone, and --"));
  EXPECT_THAT(more({"--measured", "x.json"}), HasSubstr("--measured is of a pipeline's"));
  EXPECT_THAT(more({"--schedule", "1f2b"}), HasSubstr("--schedule: no pipeline schedule '1f2b'"));
  EXPECT_THAT(more({"--straggler", "0.5"}), HasSubstr("--straggler is '0.5'; give 1 to"));
  EXPECT_THAT(more({"--straggler", "nan"}), HasSubstr("--straggler"));
  EXPECT_THAT(more({"--slow-link", "between=-1"}), HasSubstr("--slow-link is 'between=-1'; give"));
  EXPECT_THAT(more({"--slow-link", "nowhere=1"}), HasSubstr("give between or inside"));
  EXPECT_THAT(more({"--restart", "3"}), HasSubstr("give --rank-mtbf or --host-mtbf"));
  EXPECT_THAT(more({"--rank-mtbf", "1000"}), HasSubstr("--checkpoint-stall is required"));
  EXPECT_THAT(more({"--rank-mtbf", "1000", "--checkpoint-stall", "-1"}),
              HasSubstr("--checkpoint-stall is '-1'; give seconds, 0 to 1e15, or the folder"));
  EXPECT_THAT(more({"--rank-mtbf", "1000", "--checkpoint-stall", "20s"}),
              AllOf(StartsWith("--checkpoint-stall: "), HasSubstr("give seconds, 0 to 1e15")));
  EXPECT_THAT(more({"--rank-mtbf", "-1"}), HasSubstr("--rank-mtbf is '-1'; give 0 to"));
  EXPECT_THAT(more({"--price", "2"}), HasSubstr("give --tokens"));
  EXPECT_THAT(more({"--json", "/nowhere/plan.json"}), HasSubstr("/nowhere"));
}

TEST(PlanJob, Words) {
  EXPECT_EQ(wrapped("1 is data", 0, 4, 80), "1 is data") << "a word that ends at the indent";
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-999), "-999");
  EXPECT_EQ(count_text(8.03e9), "8.03 G");
  EXPECT_EQ(count_text(124439808), "124 M");
  EXPECT_EQ(bytes_text(62.3 * 1024 * 1024 * 1024), "62.3 GiB");
  EXPECT_EQ(seconds_text(0.0123), "12.3 ms");
  EXPECT_EQ(seconds_text(3.214), "3.21 s");
}

}  // namespace plan_job_test
}  // namespace lockstep::inline v0::cli
