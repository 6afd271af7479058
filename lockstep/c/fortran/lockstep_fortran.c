/* The C half of the module `lockstep`: turns the descriptors of Fortran's arrays into
 * lockstep_array and calls the C interface. It is compiled with the user's compilers, for a
 * descriptor's layout is the Fortran compiler's own.
 *
 * An array a(n1, n2, ..., nk) becomes the shape (nk, ..., n2, n1), whose last dimension is n1: the
 * same memory, in row-major order. Sections become strides. Nothing is copied.
 */
#include <ISO_Fortran_binding.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/c/lockstep.h"

typedef struct {
  lockstep_array array;
  int64_t shape[CFI_MAX_RANK];
  int64_t strides[CFI_MAX_RANK];
} view;

static int32_t type_of(const CFI_cdesc_t* a) {
  switch (a->type) {
    case CFI_type_float:
      return LOCKSTEP_FLOAT32;
    case CFI_type_double:
      return LOCKSTEP_FLOAT64;
    case CFI_type_int8_t:
      return LOCKSTEP_INT8;
    case CFI_type_int16_t:
      return LOCKSTEP_INT16;
    case CFI_type_int32_t:
      return LOCKSTEP_INT32;
    case CFI_type_int64_t:
      return LOCKSTEP_INT64;
    case CFI_type_Bool:
      return LOCKSTEP_BOOL;
    default:
      return 0; /* which the C interface refuses */
  }
}

/* The view of a descriptor, NULL for an argument that is absent. A stride that is no multiple of
 * the element, as in a component of an array of derived type, becomes -1, which is refused. */
static const lockstep_array* seen(const CFI_cdesc_t* a, view* v) {
  if (a == NULL) return NULL;
  memset(v, 0, sizeof *v);
  v->array.data = a->base_addr;
  v->array.shape = v->shape;
  v->array.strides = v->strides;
  v->array.ndim = a->rank;
  v->array.dtype = type_of(a);
  const CFI_index_t element = (CFI_index_t)a->elem_len;
  for (int i = 0; i < a->rank; ++i) {
    const CFI_dim_t* dim = &a->dim[a->rank - 1 - i];
    v->shape[i] = dim->extent;
    v->strides[i] = element > 0 && dim->sm % element == 0 ? dim->sm / element : -1;
  }
  return &v->array;
}

lockstep_status lockstep_f_init(lockstep_comm** comm, const char* backend, const char* init_method,
                                const char* secret, const char* device, double timeout,
                                int32_t rank, int32_t world_size) {
  lockstep_init_options options = LOCKSTEP_INIT_OPTIONS;
  options.backend = *backend != '\0' ? backend : NULL;
  options.init_method = *init_method != '\0' ? init_method : NULL;
  options.secret = *secret != '\0' ? secret : NULL;
  options.device = *device != '\0' ? device : NULL;
  options.timeout_seconds = timeout;
  options.rank = rank;
  options.world_size = world_size;
  return lockstep_init(&options, comm);
}

lockstep_status lockstep_f_init_mpi(lockstep_comm** comm, int32_t mpi_comm, const char* backend,
                                    const char* device, double timeout) {
  lockstep_init_options options = LOCKSTEP_INIT_OPTIONS;
  options.backend = *backend != '\0' ? backend : NULL;
  options.device = *device != '\0' ? device : NULL;
  options.timeout_seconds = timeout;
  return lockstep_init_from_mpi_fint(mpi_comm, &options, NULL, comm);
}

lockstep_status lockstep_f_all_reduce(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t op) {
  view v;
  return lockstep_all_reduce(comm, seen(a, &v), op);
}

lockstep_status lockstep_f_broadcast(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t root) {
  view v;
  return lockstep_broadcast(comm, seen(a, &v), root);
}

lockstep_status lockstep_f_reduce(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t root,
                                  int32_t op) {
  view v;
  return lockstep_reduce(comm, seen(a, &v), root, op);
}

lockstep_status lockstep_f_gather(lockstep_comm* comm, const CFI_cdesc_t* output,
                                  const CFI_cdesc_t* input, int32_t root) {
  view out, in;
  return lockstep_gather(comm, seen(output, &out), seen(input, &in), root);
}

lockstep_status lockstep_f_all_gather(lockstep_comm* comm, const CFI_cdesc_t* output,
                                      const CFI_cdesc_t* input) {
  view out, in;
  return lockstep_all_gather(comm, seen(output, &out), seen(input, &in));
}

lockstep_status lockstep_f_scatter(lockstep_comm* comm, const CFI_cdesc_t* output,
                                   const CFI_cdesc_t* input, int32_t root) {
  view out, in;
  return lockstep_scatter(comm, seen(output, &out), seen(input, &in), root);
}

lockstep_status lockstep_f_reduce_scatter(lockstep_comm* comm, const CFI_cdesc_t* output,
                                          const CFI_cdesc_t* input, int32_t op) {
  view out, in;
  return lockstep_reduce_scatter(comm, seen(output, &out), seen(input, &in), op);
}

lockstep_status lockstep_f_all_to_all(lockstep_comm* comm, const CFI_cdesc_t* output,
                                      const CFI_cdesc_t* input) {
  view out, in;
  return lockstep_all_to_all(comm, seen(output, &out), seen(input, &in));
}

lockstep_status lockstep_f_send(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t to,
                                int32_t tag) {
  view v;
  return lockstep_send(comm, seen(a, &v), to, tag);
}

lockstep_status lockstep_f_recv(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t from,
                                int32_t tag) {
  view v;
  return lockstep_recv(comm, seen(a, &v), from, tag);
}

lockstep_status lockstep_f_all_reduce_start(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t op,
                                            lockstep_work** work) {
  view v;
  return lockstep_all_reduce_start(comm, seen(a, &v), op, work);
}

lockstep_status lockstep_f_broadcast_start(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t root,
                                           lockstep_work** work) {
  view v;
  return lockstep_broadcast_start(comm, seen(a, &v), root, work);
}

lockstep_status lockstep_f_isend(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t to, int32_t tag,
                                 lockstep_work** work) {
  view v;
  return lockstep_isend(comm, seen(a, &v), to, tag, work);
}

lockstep_status lockstep_f_irecv(lockstep_comm* comm, const CFI_cdesc_t* a, int32_t from,
                                 int32_t tag, lockstep_work** work) {
  view v;
  return lockstep_irecv(comm, seen(a, &v), from, tag, work);
}

/* A list of arrays of different shapes and types. */
typedef struct lockstep_f_list {
  view* views;
  lockstep_array* arrays;
  char** names;
  int32_t count;
} lockstep_f_list;

void lockstep_f_list_free(lockstep_f_list* list) {
  if (list == NULL) return;
  for (int32_t i = 0; i < list->count; ++i) free(list->names[i]);
  free(list->views);
  free(list->arrays);
  free(list->names);
  free(list);
}

/* Returns OUT_OF_MEMORY, and leaves the list as it was, where there is no memory. */
lockstep_status lockstep_f_list_add(lockstep_f_list** given, const CFI_cdesc_t* a,
                                    const char* name) {
  if (*given == NULL) *given = calloc(1, sizeof **given);
  lockstep_f_list* list = *given;
  if (list == NULL) return LOCKSTEP_OUT_OF_MEMORY;
  const size_t n = (size_t)list->count + 1;
  char* copy = malloc(strlen(name) + 1);
  view* views = realloc(list->views, n * sizeof *views);
  if (views != NULL) list->views = views;
  lockstep_array* arrays = realloc(list->arrays, n * sizeof *arrays);
  if (arrays != NULL) list->arrays = arrays;
  char** names = realloc(list->names, n * sizeof *names);
  if (names != NULL) list->names = names;
  if (copy == NULL || views == NULL || arrays == NULL || names == NULL) {
    free(copy);
    return LOCKSTEP_OUT_OF_MEMORY;
  }
  strcpy(copy, name);
  list->names[list->count] = copy;
  seen(a, &list->views[list->count]);
  ++list->count;
  /* The views may have moved. */
  for (int32_t i = 0; i < list->count; ++i) {
    list->views[i].array.shape = list->views[i].shape;
    list->views[i].array.strides = list->views[i].strides;
    list->arrays[i] = list->views[i].array;
  }
  return LOCKSTEP_OK;
}

lockstep_status lockstep_f_broadcast_list(lockstep_comm* comm, const lockstep_f_list* list,
                                          int32_t root) {
  if (list == NULL) return lockstep_broadcast_arrays(comm, NULL, 0, NULL, root);
  return lockstep_broadcast_arrays(comm, list->arrays, list->count, (const char* const*)list->names,
                                   root);
}

lockstep_status lockstep_f_average_list(lockstep_comm* comm, const lockstep_f_list* list) {
  if (list == NULL) return lockstep_average_arrays(comm, NULL, 0);
  return lockstep_average_arrays(comm, list->arrays, list->count);
}

lockstep_status lockstep_f_mlp(const int64_t* sizes, int32_t count, const char* activation,
                               int32_t single, int64_t seed, const char* device,
                               lockstep_model** model) {
  lockstep_mlp_options options = LOCKSTEP_MLP_OPTIONS;
  options.sizes = sizes;
  options.count = count;
  options.activation = *activation != '\0' ? activation : NULL;
  options.device = *device != '\0' ? device : NULL;
  options.dtype = single ? LOCKSTEP_FLOAT32 : LOCKSTEP_FLOAT64;
  options.seed = (uint64_t)seed;
  return lockstep_model_mlp(&options, model);
}

lockstep_status lockstep_f_start_training(lockstep_model* model, lockstep_comm* comm,
                                          const char* loss, lockstep_loss_function function,
                                          void* context, const char* optimizer,
                                          double learning_rate, double weight_decay,
                                          double momentum, double beta1, double beta2,
                                          double epsilon, double max_gradient_norm,
                                          int32_t nesterov) {
  lockstep_training_options options = LOCKSTEP_TRAINING_OPTIONS;
  options.loss = *loss != '\0' ? loss : NULL;
  options.loss_function = function;
  options.loss_context = context;
  options.optimizer = optimizer;
  options.learning_rate = learning_rate;
  options.weight_decay = weight_decay;
  options.momentum = momentum;
  options.beta1 = beta1;
  options.beta2 = beta2;
  options.epsilon = epsilon;
  options.max_gradient_norm = max_gradient_norm;
  options.nesterov = nesterov;
  return lockstep_model_start_training(model, comm, &options);
}

lockstep_status lockstep_f_train_step(lockstep_model* model, const CFI_cdesc_t* input,
                                      const CFI_cdesc_t* target, double* loss) {
  view in, wanted;
  return lockstep_model_train_step(model, seen(input, &in), 1, seen(target, &wanted), 1, loss);
}

lockstep_status lockstep_f_evaluate(lockstep_model* model, const CFI_cdesc_t* input,
                                    const CFI_cdesc_t* target, double* loss) {
  view in, wanted;
  return lockstep_model_evaluate(model, seen(input, &in), 1, seen(target, &wanted), 1, loss);
}

lockstep_status lockstep_f_train_step_list(lockstep_model* model, const lockstep_f_list* inputs,
                                           const lockstep_f_list* targets, double* loss) {
  return lockstep_model_train_step(
      model, inputs != NULL ? inputs->arrays : NULL, inputs != NULL ? inputs->count : 0,
      targets != NULL ? targets->arrays : NULL, targets != NULL ? targets->count : 0, loss);
}

lockstep_status lockstep_f_forward(lockstep_model* model, const CFI_cdesc_t* input,
                                   const CFI_cdesc_t* output) {
  view in, out;
  lockstep_array result;
  const lockstep_array* given = seen(output, &out);
  result = *given;
  return lockstep_model_forward(model, seen(input, &in), 1, &result, 1);
}
