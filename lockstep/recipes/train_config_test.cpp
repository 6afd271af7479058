#include "lockstep/recipes/train_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/core/errors.h"
#include "lockstep/model/image_model.h"

namespace lockstep::inline v0::train_config_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TrainConfig valid() {
  TrainConfig config;
  config.data = "d";
  return config;
}

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

TEST(TrainConfig, DefaultsAreTheTutorials) {
  const TrainConfig config = resolved(valid());
  EXPECT_EQ(config.epochs, 10);
  EXPECT_EQ(config.batch_size, 128);
  EXPECT_EQ(config.seed, 1234);
  EXPECT_EQ(config.lr, 0.01);
  EXPECT_EQ(config.momentum, 0.5);
  EXPECT_EQ(config.mean, 0.1307);
  EXPECT_EQ(config.stddev, 0.3081);
  TrainConfig three = valid();
  three.nproc = 3;
  EXPECT_EQ(resolved(three).batch_size, 42);
}

TEST(TrainConfig, JsonComesBack) {
  TrainConfig config = valid();
  config.lr = 0.1 + 0.2;
  config.output = "\xE8\xB7\x91/x y";
  config.nproc = 7;
  EXPECT_EQ(train_config_from_json(to_json(config), "c.json"), config);
  EXPECT_EQ(train_config_from_json("{}", "c.json", config), config);
  EXPECT_EQ(train_config_from_json(R"({"lr": 1})", "c.json").lr, 1.0);
}

TEST(TrainConfig, RecipesHaveTheirOwnFields) {
  TrainConfig config = default_config("cifar");
  config.data = "d";
  config.augment = false;
  config.amp = "bf16";
  const std::string json = to_json(config);
  EXPECT_EQ(train_config_from_json(json, "c.json"), config);
  EXPECT_THAT(json, AllOf(HasSubstr("\"augment\": false"), Not(HasSubstr("stddev"))));
  EXPECT_THAT(to_json(valid()), AllOf(HasSubstr("stddev"), Not(HasSubstr("augment"))));
  EXPECT_EQ(train_config_from_json(R"({"recipe": "cifar"})", "c.json").momentum, 0.9);
  const auto from = [](const char* text, const TrainConfig& base) {
    return error_of([&] { train_config_from_json(text, "c.json", base); });
  };
  EXPECT_THAT(from(json.c_str(), valid()), HasSubstr("c.json: recipe is 'cifar'; give a file for"));
  EXPECT_THAT(from(R"({"recipe": "x"})", valid()), HasSubstr("give mnist, cifar, text or lm"));
  EXPECT_THAT(from(R"({"augment": 1})", config), HasSubstr("true or false"));
  EXPECT_THAT(from(R"({"mean": 1})", config), HasSubstr("unknown key 'mean'"));
  EXPECT_EQ(resolved(config).lr, 0.1);
  config.model = "simple-cnn";
  EXPECT_EQ(resolved(config).lr, 0.02);
  config.sync_batch_norm = true;
  EXPECT_THAT(error_of([&] { resolved(config); }), HasSubstr("simple-cnn has no BatchNorm"));
}

TEST(TrainConfig, BadJsonIsOneClearLine) {
  const auto from = [](const char* text) {
    return error_of([&] { train_config_from_json(text, "c.json"); });
  };
  EXPECT_THAT(from("{"), HasSubstr("c.json: is not JSON"));
  EXPECT_EQ(from(R"({"lr": 1e999})"),
            "c.json: the number 1e999 is out of range; give one that a double holds");
  EXPECT_THAT(from("[]"), HasSubstr("c.json: is []; give a JSON object"));
  EXPECT_THAT(from(R"({"batchsize": 3})"),
              AllOf(HasSubstr("unknown key 'batchsize'"), HasSubstr("'batch_size'")));
  EXPECT_THAT(from(R"({"zzzzzzzzzzz": 3})"), HasSubstr("--help"));
  EXPECT_THAT(from(R"({"epochs": "3"})"),
              HasSubstr("c.json: epochs is \"3\"; give a whole number"));
  EXPECT_THAT(from(R"({"epochs": 1.5})"), HasSubstr("whole number"));
  EXPECT_THAT(from(R"({"epochs": 18446744073709551615})"), HasSubstr("whole number"));
  EXPECT_THAT(from(R"({"lr": true})"), HasSubstr("a number"));
  EXPECT_THAT(from(R"({"data": 1})"), HasSubstr("a text"));
}

TEST(TrainConfig, AnySeedIsReadBack) {
  for (const int64_t seed :
       {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    TrainConfig config = default_config("mnist");
    config.seed = seed;
    EXPECT_EQ(train_config_from_json(to_json(config), "c.json").seed, seed);
  }
}

TEST(TrainConfig, FieldsAreSetFromText) {
  TrainConfig config;
  set_field(config, "epochs", "3");
  set_field(config, "lr", "1e-3");
  set_field(config, "data", "x");
  EXPECT_EQ(config.epochs, 3);
  EXPECT_EQ(config.lr, 1e-3);
  EXPECT_EQ(config.data, "x");
  EXPECT_THAT(error_of([&] { set_field(config, "epochs", "3x"); }), HasSubstr("epochs is '3x'"));
  EXPECT_THAT(error_of([&] { set_field(config, "lr", "nan"); }), HasSubstr("lr is 'nan'"));
  EXPECT_THAT(error_of([&] { set_field(config, "epoch", "3"); }),
              HasSubstr("did you mean 'epochs'"));
}

TEST(TrainConfig, NonsenseIsNamed) {
  const auto with = [](const char* field, const char* text) {
    return error_of([&] {
      TrainConfig config = valid();
      set_field(config, field, text);
      resolved(config);
    });
  };
  EXPECT_THAT(with("nproc", "0"), HasSubstr("nproc is 0; give 1 or more"));
  EXPECT_THAT(with("nproc", "129"), HasSubstr("nproc is 129, which leaves nothing"));
  EXPECT_THAT(with("strategy", "x"),
              HasSubstr("strategy 'x' is unknown; choose ddp, average, "
                        "ring, naive-ring, horovod, zero1, zero2, zero3, fsdp, diloco "
                        "or logical8"));
  for (const auto& [field, text] :
       std::initializer_list<std::pair<const char*, const char*>>{{"recipe", "x"},
                                                                  {"data", ""},
                                                                  {"output", ""},
                                                                  {"sampler", "x"},
                                                                  {"device", "gpu"},
                                                                  {"backend", "x"},
                                                                  {"epochs", "0"},
                                                                  {"batch_size", "-1"},
                                                                  {"max_steps", "-1"},
                                                                  {"log_every", "0"},
                                                                  {"save_every", "-1"},
                                                                  {"workers", "65"},
                                                                  {"lr", "0"},
                                                                  {"momentum", "1"},
                                                                  {"stddev", "0"},
                                                                  {"weight_decay", "-1"},
                                                                  {"schedule", "x"},
                                                                  {"warmup", "11"},
                                                                  {"amp", "fp16"},
                                                                  {"timeout", "0"},
                                                                  {"dropout1", "1"},
                                                                  {"check_replicas", "-1"},
                                                                  {"evict_stragglers", "1"}}) {
    EXPECT_THAT(with(field, text), HasSubstr(std::string(field) + " is ")) << field;
  }
  EXPECT_EQ(with("strategy", "naive_ring"), "no error");
  EXPECT_EQ(with("check_replicas", "10"), "no error");
  EXPECT_THAT(error_of([] {
                TrainConfig config = valid();
                config.strategy = "zero3";
                config.check_replicas = 10;
                resolved(config);
              }),
              HasSubstr("check_replicas is 10; give 0 where ranks divide or share one copy of the "
                        "parameters, as with strategy zero3"));
  EXPECT_THAT(error_of([] {
                TrainConfig config = valid();
                config.strategy = "zero3";
                config.backend = "gloo";
                config.nproc = 2;
                resolved(config);
              }),
              HasSubstr("backend is 'gloo'; give shm or hierarchical"));
  EXPECT_THAT(error_of([] {
                TrainConfig config = valid();
                config.offload_checkpoints = true;
                resolved(config);
              }),
              HasSubstr("offload_checkpoints is true; give false unless gradient_checkpointing is "
                        "true, too"));
}

// What compares or joins the ranks in each step, and settings of outer steps without any.
TEST(TrainConfig, DiLoCoRefusesWhatDoesNotGoWithIt) {
  const auto with = [](const char* strategy, const auto& change, const char* recipe = "mnist") {
    TrainConfig config = default_config(recipe);
    config.data = "d";
    config.strategy = strategy;
    change(config);
    return error_of([&] { resolved(config); });
  };
  const auto steps = [](TrainConfig& config) { config.diloco_steps = 20; };
  EXPECT_EQ(with("diloco", steps), "no error");
  EXPECT_EQ(with("ddp", steps), "diloco_steps is 20; give it with strategy diloco");
  EXPECT_EQ(with("ddp", [](TrainConfig& config) { config.diloco_lr = 1; }),
            "diloco_lr is 1.0; give it with strategy diloco");
  EXPECT_EQ(with("zero2", [](TrainConfig& config) { config.diloco_momentum = 0; }),
            "diloco_momentum is 0.0; give it with strategy diloco");
  EXPECT_EQ(with("diloco", [](TrainConfig& config) { config.diloco_steps = 0; }),
            "diloco_steps is 0; give 1 or more");
  EXPECT_EQ(with("diloco", [](TrainConfig& config) { config.diloco_lr = 0; }),
            "diloco_lr is 0.0; give a number above 0");
  EXPECT_EQ(with("diloco", [](TrainConfig& config) { config.diloco_momentum = 1; }),
            "diloco_momentum is 1.0; give 0 or more, and less than 1");
  const std::string apart =
      " with strategy diloco, whose ranks train apart between two outer steps";
  EXPECT_EQ(with("diloco", [](TrainConfig& config) { config.ema = 0.5; }),
            "ema is 0.5; give 0" + apart);
  EXPECT_EQ(with("diloco", [](TrainConfig& config) { config.check_replicas = 5; }),
            "check_replicas is 5; give 0" + apart);
  EXPECT_EQ(with(
                "diloco", [](TrainConfig& config) { config.sync_batch_norm = true; }, "cifar"),
            "sync_batch_norm is true; give false" + apart);
  EXPECT_EQ(with(
                "diloco", [](TrainConfig& config) { config.mesh = "tensor=2"; }, "lm"),
            "strategy is 'diloco'; give ddp, zero1, zero2 or zero3");
  EXPECT_EQ(with("ddp", [](TrainConfig& config) { config.ema_buffers = true; }),
            "ema_buffers is true, and there is no average; give ema, too");
}

// Outer steps may begin and end with a resume, but not change.
TEST(TrainConfig, DiLoCoMayBeginAndEndWithAResume) {
  TrainConfig before = valid();
  before.nproc = 2;
  before.batch_size = 64;
  TrainConfig now = before;
  now.strategy = "diloco";
  now.diloco_steps = 20;
  EXPECT_EQ(error_of([&] { check_resumable(before, now); }), "no error");
  EXPECT_EQ(error_of([&] { check_resumable(now, before); }), "no error");
  TrainConfig other = now;
  other.diloco_steps = 30;
  EXPECT_THAT(error_of([&] { check_resumable(now, other); }),
              HasSubstr("diloco_steps was 20 and is now 30"));
}

TEST(TrainConfig, AMeshIsOfRanksThatThereAre) {
  const auto with = [](const char* mesh, const char* strategy, int64_t nproc) {
    TrainConfig config = valid();
    config.mesh = mesh;
    config.strategy = strategy;
    config.nproc = nproc;
    return config;
  };
  const auto error = [&](const char* mesh, const char* strategy = "zero3", int64_t nproc = 4) {
    return error_of([&] { resolved(with(mesh, strategy, nproc)); });
  };
  EXPECT_EQ(resolved(with("data=2,shard=3", "fsdp", 1)).nproc, 6);
  EXPECT_EQ(resolved(with("data,shard=2", "zero3", 4)).nproc, 4);
  EXPECT_EQ(error("data=4", "ddp"), "no error");
  EXPECT_EQ(error("data=4,shard", "ddp"), "no error");
  EXPECT_THAT(error("data=2,shard=3"), HasSubstr("data 2 x shard 3 = 6"));
  EXPECT_THAT(error("data=2,rows=2"), HasSubstr("mesh is 'data=2,rows=2'; give axes named data "));
  EXPECT_THAT(error("data=2,pipe=2"),
              HasSubstr("mesh is 'data=2,pipe=2'; give axes data and shard: lm alone"));
  EXPECT_THAT(error("shard=2,data=2"), HasSubstr("give shard as the last axis"));
  EXPECT_THAT(error("data=2,shard=2", "zero2"),
              HasSubstr("ranks of strategy zero2 share no parameters"));
  EXPECT_THAT(
      error("data=99999,shard=99999,x=99999", "zero3", 1),
      HasSubstr("data 99999 x shard 99999 x x 99999 = 1000000000 or more, but there are 1"));
}

TEST(TrainConfig, AMeshDividesALanguageModel) {
  const auto with = [](const char* mesh, const char* strategy, int64_t nproc) {
    TrainConfig config = default_config("lm");
    config.data = "sentences";
    config.mesh = mesh;
    config.strategy = strategy;
    config.nproc = nproc;
    return config;
  };
  const auto error = [&](const char* mesh, const char* strategy = "ddp", int64_t nproc = 1) {
    return error_of([&] { resolved(with(mesh, strategy, nproc)); });
  };
  const TrainConfig whole = resolved(with("data=2,pipe=2,tensor=2", "zero1", 1));
  EXPECT_EQ(whole.nproc, 8);
  EXPECT_EQ(batches_of_step(whole), 2);
  EXPECT_TRUE(divides_model(whole));
  EXPECT_FALSE(divides_model(resolved(with("data=2", "ddp", 1))));
  EXPECT_THAT(error("data=2,pipe=2", "horovod"), HasSubstr("ddp, zero1, zero2"));
  EXPECT_THAT(error("data=2,tensor=2", "ddp", 3),
              HasSubstr("data 2 x tensor 2 = 4, but there are 3"));
  EXPECT_THAT(error("tensor=3"), HasSubstr("4 heads, which do not divide among 3 parts"));
  EXPECT_THAT(error("pipe=8"), HasSubstr("a pipeline of 8 chunks, and the model has 7 units"));
  EXPECT_THAT(error("expert=2"), HasSubstr("the model has no experts"));
  EXPECT_THAT(error("tensor=2,shard=2"), HasSubstr("there is no axis 'shard'"));
  TrainConfig many = with("pipe=2,tensor=2", "ddp", 4);
  many.micro_batches = (int64_t{1} << 32) + 1;  // which an int has as 1
  EXPECT_THAT(error_of([&] { resolved(many); }), HasSubstr("give 0 to 65536"));
  TrainConfig flat = with("data=2", "ddp", 2);
  flat.micro_batches = 4;
  EXPECT_THAT(error_of([&] { resolved(flat); }),
              HasSubstr("give it with pipe or tensor in the mesh"));
}

// What a field takes stands with the field, and is looked at before anything is read.
TEST(TrainConfig, AFieldSaysWhatItTakes) {
  const auto with = [](const char* recipe, const char* field, const char* text) {
    TrainConfig config = default_config(recipe);
    config.data = "somewhere";
    set_field(config, field, text);
    return error_of([&] { resolved(config); });
  };
  EXPECT_EQ(with("mnist", "workers", "65"), "workers is 65; give 0 to 64");
  EXPECT_EQ(with("mnist", "momentum", "1"), "momentum is 1.0; give 0 or more, and less than 1");
  EXPECT_EQ(with("mnist", "stddev", "0"), "stddev is 0.0; give a number above 0");
  EXPECT_EQ(with("mnist", "sampler", "dealt"), "sampler is 'dealt'; give distributed or partition");
  EXPECT_EQ(with("cifar", "model", "resnet"),
            "model is 'resnet'; give resnet18, resnet50 or simple-cnn");
  for (const std::string& name : image_model_names())
    EXPECT_EQ(with("cifar", "model", name.c_str()), "no error");
  EXPECT_EQ(with("text", "max_length", "513"), "max_length is 513; give 2 to 512");
  EXPECT_EQ(with("text", "warmup_ratio", "1.5"), "warmup_ratio is 1.5; give 0 to 1");
  EXPECT_EQ(with("lm", "clip", "-1"), "clip is -1.0; give 0 or more");
  EXPECT_EQ(with("lm", "timeout", "0"),
            "timeout is 0.0; give a number above 0, and less than 10000000");
  for (const ConfigField& field : config_fields("text")) {
    if (field.name == "padding") {
      EXPECT_EQ(field.type, "max_length|longest|packed");
    }
  }
}

TEST(TrainConfig, ASettingOfAnotherRecipeIsRefused) {
  const auto with = [](const char* recipe, const auto& change) {
    TrainConfig config = default_config(recipe);
    config.data = "somewhere";
    change(config);
    return error_of([&] { resolved(config); });
  };
  EXPECT_EQ(with("mnist", [](TrainConfig& config) { config.model = "resnet50"; }),
            "model is \"resnet50\"; give \"simple-cnn\": the recipe mnist has no such setting");
  EXPECT_EQ(with("cifar", [](TrainConfig& config) { config.mean = 0.5; }),
            "mean is 0.5; give 0.1307: the recipe cifar has no such setting");
  EXPECT_EQ(with("lm", [](TrainConfig& config) { config.augment = true; }),
            "augment is true; give false: the recipe lm has no such setting");
  EXPECT_EQ(with("text", [](TrainConfig& config) { config.clip = 0; }),
            "clip is 0.0; give 1.0: the recipe text has no such setting");
  for (const char* recipe : {"mnist", "cifar", "text", "lm"})
    EXPECT_EQ(with(recipe, [](TrainConfig&) {}), "no error") << recipe;
}

TEST(TrainConfig, MoreRanksThanSamples) {
  TrainConfig config = valid();
  config.nproc = 4;
  EXPECT_THAT(error_of([&] { check_against_data(config, 3, 10); }),
              HasSubstr("nproc is 4, more ranks than the 3 samples for training in d"));
  EXPECT_THAT(error_of([&] { check_against_data(config, 30, 0); }), HasSubstr("both are needed"));
  EXPECT_EQ(error_of([&] { check_against_data(config, 4, 1); }), "no error");
}

// Statistics over all ranks' batches are of the samples that count, so each rank has one.
TEST(TrainConfig, SyncBatchNormNeedsASampleOfEveryStepOnEachRank) {
  TrainConfig config = valid();
  config.nproc = 3;
  config.step_samples = 8;
  config.sync_batch_norm = true;
  for (const int64_t samples : {8, 11, 15, 19})
    EXPECT_EQ(error_of([&] { check_against_data(config, samples, 1); }), "no error") << samples;
  EXPECT_THAT(error_of([&] { check_against_data(config, 18, 1); }),
              HasSubstr("leaves 2 samples for an epoch's last step and its 3 ranks"));
  EXPECT_THAT(error_of([&] { check_against_data(config, 9, 1); }),
              HasSubstr("leaves 1 sample for"));
  config.sync_batch_norm = false;
  EXPECT_EQ(error_of([&] { check_against_data(config, 18, 1); }), "no error");
}

TEST(TrainConfig, AStepOfAllRanksIsSharedAsEquallyAsItGoes) {
  TrainConfig config = valid();
  config.step_samples = 100;
  config.nproc = 4;
  EXPECT_EQ(resolved(config).batch_size, 25);
  EXPECT_EQ(resolved(config).step_samples, 0) << "batch_size says it";
  config.nproc = 3;
  EXPECT_EQ(resolved(config).batch_size, 34);
  EXPECT_EQ(samples_of_step(resolved(config)), 100);
  EXPECT_EQ(resolved(resolved(config)), resolved(config));
  for (const int64_t samples : {1, 99, 100, 101, 250})
    EXPECT_EQ(steps_per_epoch(resolved(config), samples), (samples + 99) / 100) << samples;
  config.nproc = 2;
  config.strategy = "logical8";
  EXPECT_THAT(error_of([&] { resolved(config); }),
              AllOf(HasSubstr("step_samples is 100"), HasSubstr("a multiple of 8")));
  config.step_samples = 96;
  EXPECT_EQ(resolved(config).batch_size, 12);
  config.step_samples = -1;
  EXPECT_THAT(error_of([&] { resolved(config); }), HasSubstr("step_samples is -1"));
}

TEST(TrainConfig, AStepOfAnotherSizeIsNamedWhereNoSettingSaysIt) {
  TrainConfig before = valid();
  before.nproc = 2;
  before.batch_size = 64;
  TrainConfig now = before;
  now.strategy = "logical8";
  EXPECT_THAT(error_of([&] { check_resumable(before, now); }),
              AllOf(HasSubstr("a step had 128 samples under strategy ddp and now has 512 under "
                              "strategy logical8"),
                    Not(HasSubstr("nproc"))));
  now.batch_size = 16;
  EXPECT_EQ(error_of([&] { check_resumable(before, now); }), "no error");
}

TEST(TrainConfig, ResumeKeepsItsCourse) {
  TrainConfig before = valid(), now = valid();
  now.epochs = 99;
  now.output = "elsewhere";
  EXPECT_EQ(error_of([&] { check_resumable(before, now); }), "no error");
  before.schedule = now.schedule = "cosine";
  EXPECT_THAT(error_of([&] { check_resumable(before, now); }),
              HasSubstr("epochs was 10 and is now 99"));
  before.schedule = now.schedule = "constant";
  now.lr = 0.5;
  now.nproc = 2;
  EXPECT_THAT(error_of([&] { check_resumable(before, now); }),
              AllOf(HasSubstr("nproc was 1 and is now 2"), HasSubstr("lr was 0.01 and is now 0.5"),
                    Not(HasSubstr("epochs"))));
}

}  // namespace lockstep::inline v0::train_config_test
