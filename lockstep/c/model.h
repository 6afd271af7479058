// TorchScript models of Lockstep's C interface: forward, training on all ranks, checkpoints. Users
// include lockstep.h.
//
//   lockstep_model_load("net.pt", "cpu", &model);
//   lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
//   options.loss = "mse";
//   lockstep_model_start_training(model, comm, &options);
//   while (...) lockstep_model_train_step(model, &input, 1, &target, 1, &loss);
//   lockstep_model_save(model, "checkpoint");
//
// Common to all functions here:
// - "Rows" are the size of the first input's first dimension: the rank's samples.
// - Arrays are read where they are; on another device than the model's they are copied.
// - A NULL model is INVALID_ARGUMENT on its rank. The other ranks get a MISMATCH that names it where
//   the call has a communicator and compares the models (broadcast, start_training); elsewhere
//   their time-out names it. Other mistakes of a rank in a collective call reach all ranks at once.
// - Thread-safety: one thread at a time for a model and its communicator.
#ifndef LOCKSTEP_C_MODEL_H
#define LOCKSTEP_C_MODEL_H

#include "lockstep/c/base.h"
#include "lockstep/c/communicator.h"

#ifdef __cplusplus
extern "C" {
#endif

// A TorchScript module, and its training if it has begun.
typedef struct lockstep_model lockstep_model;

// Reads a TorchScript file, as torch.jit.save of Python and lockstep_model_save_script() write it.
// `device`: "cpu"; "cuda:1", that CUDA device; "cuda", the one of this rank, where the ranks of a
// host share the devices in order of their numbers on it, as the launcher's environment gives them;
// "auto", "cuda" if a device is visible, and otherwise "cpu"; NULL: the CPU. A process that no
// launcher has started and that sees several devices gives a number. `*model` is the caller's, to
// be freed with lockstep_model_free(); NULL after an error.
// Errors: DATA_ERROR for a file that is missing or is no TorchScript; INVALID_ARGUMENT.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_load(const char* path, const char* device,
                                                      lockstep_model** model);

typedef struct lockstep_mlp_options lockstep_mlp_options;  // of lockstep_model_mlp()
// The network that lockstep_model_mlp() makes. Start from LOCKSTEP_MLP_OPTIONS.
struct lockstep_mlp_options {
  size_t struct_size;      // of the struct that the caller was compiled with
  const int64_t* sizes;    // of the layers: inputs, hidden layers, outputs
  const char* activation;  // between the layers: "tanh", "relu", "gelu", "silu"; NULL: "tanh"
  const char* device;      // as for lockstep_model_load()
  uint64_t seed;           // of the first values; the same seed gives the same
  int32_t count;           // of sizes: 2 or more
  int32_t dtype;           // LOCKSTEP_FLOAT32 or LOCKSTEP_FLOAT64
};

// The defaults of lockstep_mlp_options.
#define LOCKSTEP_MLP_OPTIONS \
  {sizeof(lockstep_mlp_options), NULL, NULL, NULL, 0, 0, LOCKSTEP_FLOAT32}

// Makes a network of fully connected layers, [n, sizes[0]] to [n, sizes[count - 1]]. Layer i has
// the parameters "layers.i.weight" and "layers.i.bias", uniform in +-1/sqrt(its inputs).
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_mlp(const lockstep_mlp_options* options,
                                                     lockstep_model** model);

// Frees the model. NULL does nothing.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_free(lockstep_model* model);

// The parameters, in the model's order. `*name` and `*array` are the model's and valid until it is
// freed; `*array` also no longer than to the next lockstep_model_start_training(), which moves the
// parameters. `array` is a view: writing to it changes the parameter.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_parameter_count(lockstep_model* model,
                                                                 int32_t* count);
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_parameter(lockstep_model* model, int32_t index,
                                                           const char** name,
                                                           lockstep_array* array);

// Copies the root's parameters and buffers into those of every rank.
// Collective: all ranks of `comm`.
// Errors: MISMATCH that names the first tensor whose name, shape or type differs.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_broadcast(lockstep_model* model,
                                                           lockstep_comm* comm, int32_t root);

// Replaces every parameter by its average over the ranks: for ranks that train by themselves and
// meet now and then. Collective: all ranks of `comm`.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_average(lockstep_model* model,
                                                         lockstep_comm* comm);

// Computes the model's outputs for evaluation, without gradients. An output whose `data` is not
// NULL gets the values copied, and must have the output's shape. An output whose `data` is NULL
// becomes a view of the result, the model's, valid until its next forward; it shares no memory with
// an input. Local.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_forward(lockstep_model* model,
                                                         const lockstep_array* inputs,
                                                         int32_t input_count,
                                                         lockstep_array* outputs,
                                                         int32_t output_count);

// The caller's loss. Writes the loss into `*loss`, a mean over the rows, and its gradient with
// respect to outputs[i] into gradients[i], which has that output's shape and is zero before. Arrays
// are on the CPU, row-major, and valid during the call. Returns 0, or else the step ends with
// CALLBACK_ERROR. It must not call Lockstep. Not called on a rank without rows.
typedef int (*lockstep_loss_function)(void* context, const lockstep_array* outputs,
                                      int32_t output_count, const lockstep_array* targets,
                                      int32_t target_count, lockstep_array* gradients,
                                      double* loss);

typedef struct lockstep_training_options lockstep_training_options;  // loss and optimizer
// The loss and the optimizer. Start from LOCKSTEP_TRAINING_OPTIONS. The same on all ranks, which is
// compared, except that loss_function, loss_context and a file's path are each rank's own.
struct lockstep_training_options {
  size_t struct_size;  // of the struct that the caller was compiled with
  // "mse", "l1", "cross_entropy", "nll": of the first output and the first target, a mean.
  // Otherwise the path of a TorchScript file, whose forward takes the outputs and then the targets
  // and returns the mean loss. NULL: loss_function.
  const char* loss;
  lockstep_loss_function loss_function;
  void* loss_context;        // passed to loss_function
  const char* optimizer;     // "sgd", "adam", "adamw"
  double learning_rate;      // of all parameters
  double weight_decay;       // sgd and adam: added to the gradient; adamw: decoupled
  double momentum;           // sgd
  double beta1;              // adam, adamw: of the mean of gradients
  double beta2;              // of the mean of their squares
  double epsilon;            // added to the root of that mean
  double max_gradient_norm;  // gradients are clipped to this global norm; 0: not
  int32_t nesterov;          // sgd: 1 for Nesterov's momentum
  int32_t reserved;          // 0
};

// The defaults of lockstep_training_options.
#define LOCKSTEP_TRAINING_OPTIONS     \
  {sizeof(lockstep_training_options), \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   "adam",                            \
   1e-3,                              \
   0,                                 \
   0,                                 \
   0.9,                               \
   0.999,                             \
   1e-8,                              \
   0,                                 \
   0,                                 \
   0}

// Makes the model ready for train_step: compares the ranks' models, copies rank 0's parameters and
// buffers to all, and makes the optimizer. The model uses a duplicate of `comm` from now on. A
// second call starts with a new optimizer.
// Collective: all ranks of `comm`.
// Errors: INVALID_ARGUMENT for a model in which nothing can be trained, and for an option; MISMATCH
// for ranks with different models or options. If a rank cannot start, it returns the reason, and all
// others MISMATCH that names it. A former training is then as before.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_start_training(
    lockstep_model* model, lockstep_comm* comm, const lockstep_training_options* options);

// One step: forward, the loss, backward, during which gradients are averaged over the ranks, and
// the optimizer. The result is that of one process with all ranks' rows: each rank's mean loss
// counts by its rows. A rank that has no sample gives inputs of 0 rows, and takes part. `*loss` is
// the mean over all ranks' rows before the step; NULL if it is not wanted.
// Collective: all ranks.
// Errors: if a rank cannot compute its forward or its loss, it returns the reason, all others
// MISMATCH that names it, and nothing has changed: the next step may follow. So it is if ranks have
// different learning rates or numbers of steps: MISMATCH on all. INVALID_ARGUMENT on all ranks if
// none has a row.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_train_step(lockstep_model* model,
                                                            const lockstep_array* inputs,
                                                            int32_t input_count,
                                                            const lockstep_array* targets,
                                                            int32_t target_count, double* loss);

// The mean loss over all ranks' rows, without a step, in evaluation mode. Ranks may have 0 rows.
// Collective: all ranks of a model in training.
// Errors: as lockstep_model_train_step().
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_evaluate(lockstep_model* model,
                                                          const lockstep_array* inputs,
                                                          int32_t input_count,
                                                          const lockstep_array* targets,
                                                          int32_t target_count, double* loss);

// For schedules: the rate of the next steps. Local; give all ranks the same.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_set_learning_rate(lockstep_model* model,
                                                                   double rate);
// Steps since the training began, those before a checkpoint included.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_steps(const lockstep_model* model, int64_t* steps);

// Writes a checkpoint, a directory (model.safetensors, optimizer.safetensors, trainer.json), whole
// or not at all, in place of a former one. Anything else at `path` but an empty folder is refused.
// Rank 0 writes; the others wait and learn of its failure.
// Collective: all ranks of a model in training. A model that is not in training is written by the
// calling process alone.
// Errors: INVALID_ARGUMENT (on the other ranks CHECKPOINT_ERROR) for a path at which something else
// is and for a NULL path, SYSTEM_ERROR, CHECKPOINT_ERROR; what was at `path` is then unchanged. Rank
// 0's path counts.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_save(lockstep_model* model, const char* path);
// Reads it: parameters, buffers and, in training, the optimizer's state and the number of steps.
// Every rank reads the files.
// Collective: all ranks of a model in training.
// Errors: CHECKPOINT_ERROR on all ranks if one cannot read it, MISMATCH if they have read different
// models or states of the optimizer, with the first difference; the model and its training are then
// as before.
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_restore(lockstep_model* model, const char* path);
// Writes the model as a TorchScript file in evaluation mode, for inference elsewhere, whole or not
// at all.
// Collective: as lockstep_model_save().
LOCKSTEP_C_EXPORT lockstep_status lockstep_model_save_script(lockstep_model* model,
                                                             const char* path);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LOCKSTEP_C_MODEL_H
