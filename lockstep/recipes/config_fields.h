// Every field of TrainConfig, once: its name, what it is, the member.
#pragma once

#include <string>

#include "lockstep/recipes/recipes.h"
#include "lockstep/recipes/train_config.h"

namespace lockstep::internal {

// Calls visit(name, help, member) for the fields that config.recipe has, in the order of --help and of
// JSON. An unknown recipe has those of images.
template <class Config, class Visit>
void visit_fields(Config& config, Visit&& visit) {
  const Recipe* recipe = find_recipe(config.recipe);
  const RecipeKind kind = recipe == nullptr ? RecipeKind::kImages : recipe->kind;
  const bool cifar = config.recipe == "cifar", images = kind == RecipeKind::kImages,
             texts = kind == RecipeKind::kTexts, language = kind == RecipeKind::kLanguage;
  visit("recipe", "the recipe", config.recipe);
  visit("data",
        recipe == nullptr
            ? std::string("the data")
            : "directory of " + recipe->files + (images ? " (plain or .gz)" : ", a file of them") +
                  ", or '" + recipe->built_in + "': the built-in data set",
        config.data);
  visit("output", "directory for checkpoints, metrics and the report", config.output);
  visit("nproc", "ranks to start", config.nproc);
  visit("backend", "shm, tcp, hierarchical or gloo; empty: chosen", config.backend);
  visit("device", "cpu", config.device);
  visit(
      "strategy",
      "how the ranks train together: ddp, average, ring, naive-ring, horovod, zero1, zero2, zero3, "
      "fsdp, or logical8: the same bits on 1, 2, 4 or 8 ranks",
      config.strategy);
  visit(
      "mesh",
      std::string("ranks along axes, such as data=2,shard=2: those of a shard share a copy of the "
                  "parameters (zero3, fsdp); empty: those of a host do") +
          (language
               ? "; or data, pipe, context, expert and tensor, such as data=2,pipe=2,tensor=2, "
                 "with strategy ddp, zero1, zero2 or zero3"
               : ""),
      config.mesh);
  if (language) {
    visit("pipe_schedule", "with pipe in the mesh: gpipe, 1f1b, interleaved, zb-h1 or zb-v",
          config.pipe_schedule);
    visit("micro_batches", "with such a mesh: parts of a batch; 0: 2 a stage",
          config.micro_batches);
    visit("divided_rows", "with tensor in the mesh: rows are divided between its products, too",
          config.divided_rows);
  }
  if (images)
    visit("sampler",
          "distributed: samples dealt anew every epoch; partition: tutorial 000's fixed parts",
          config.sampler);
  if (texts) {
    visit("model", "BERT: mini, base, or a directory of Hugging Face's form", config.model);
    visit("vocab", "BERT's vocab.txt or tokenizer.json; empty: the model's, or the data's",
          config.vocab);
    visit("padding", "max_length, longest or packed", config.padding);
    visit("max_length", "tokens of a text; longer ones are cut", config.max_length);
    visit("remove_spaces",
          "take the spaces out of every text: for Chinese whose words are cut by spaces",
          config.remove_spaces);
  }
  if (language) {
    visit("model", "tiny, mini, small, or a directory of transformers' Llama", config.model);
    visit(
        "tokenizer",
        "a tokenizer.json as GPT-2's or Llama's, a directory with one, or characters: of the data; "
        "empty: the model's, or characters",
        config.tokenizer);
    visit("context", "tokens of a window, which the model sees at once", config.context);
    visit("dropout", "of the embeddings, and of what each block adds", config.dropout);
  }
  if (texts || language)
    visit(
        "gradient_checkpointing",
        "blocks keep their inputs only, and compute the rest again in backward: less memory, more "
        "time, the same numbers",
        config.gradient_checkpointing);
  if (cifar) {
    visit("model", "resnet18, resnet50 or simple-cnn", config.model);
    visit("sync_batch_norm", "BatchNorm's statistics over all ranks' batches",
          config.sync_batch_norm);
  }
  visit("epochs", "passes over the training data", config.epochs);
  visit("batch_size",
        texts      ? "texts a rank and step"
        : language ? "windows a rank and step"
                   : "samples a rank and step; 0: 128 / nproc",
        config.batch_size);
  visit("lr",
        cifar   ? "learning rate; 0: 0.1 for ResNets, 0.02 for simple-cnn"
        : texts ? "learning rate; 0: 5e-4, or 3e-5 for a model of a directory"
        : language
            ? "learning rate; 0: 3e-3 (mini: 1e-3, small: 6e-4), or 3e-5 for a model of a directory"
            : "learning rate",
        config.lr);
  if (images) visit("momentum", "momentum of SGD", config.momentum);
  visit("weight_decay", "weight decay, but of biases and normalisation layers",
        config.weight_decay);
  if (language)
    visit("clip", "gradients are scaled down to this norm of all of them together; 0: never",
          config.clip);
  visit("schedule", "the learning rate after the warm-up: constant, linear or cosine",
        config.schedule);
  if (images)
    visit("warmup", "epochs in which the learning rate rises from 0", config.warmup);
  else
    visit("warmup_ratio", "part of all steps in which the learning rate rises from 0",
          config.warmup_ratio);
  if (cifar) visit("augment", "random crops with a padding of 4, and mirroring", config.augment);
  visit("amp", "none, or bf16: forward computes in bfloat16 where that is safe", config.amp);
  visit("seed", "of parameters and shuffling; dropout uses seed + rank", config.seed);
  const std::string whose = cifar ? "simple-cnn: " : "";
  if (images) {
    visit("dropout1", whose + "dropout before the first linear layer", config.dropout1);
    visit("dropout2", whose + "dropout before the second linear layer", config.dropout2);
  }
  if (images && !cifar) {
    visit("mean", "subtracted from pixels scaled to 0..1", config.mean);
    visit("stddev", "by which they are then divided", config.stddev);
  }
  visit("max_steps", "stop after so many optimizer steps; 0: no limit", config.max_steps);
  visit("log_every", "steps between lines of metrics.jsonl", config.log_every);
  visit("save_every", "steps between checkpoints within an epoch; 0: after each epoch only",
        config.save_every);
  visit("async_save", "go on training while a checkpoint is written, of a copy in memory",
        config.async_save);
  visit("check_replicas",
        "steps after which all ranks' parameters are compared, bit by bit, each time; 0: never",
        config.check_replicas);
  visit("evict_stragglers",
        "end a rank that stays so many times slower than the others, for lockstep run "
        "--max-restarts to start it anew; 0: never",
        config.evict_stragglers);
  if (images)
    visit("init_from", ".safetensors or .pt file, or checkpoint, of parameters to start from",
          config.init_from);
  visit("workers", "threads a rank that load data", config.workers);
  visit("timeout", "seconds that a rank waits for the others", config.timeout);
}

}  // namespace lockstep::internal
