/* A CUDA driver for tests: what Steelyard calls of it, with launches handed to
 * a callback. Each device has one context; modules, functions and streams
 * belong to a context, and are refused under another. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

enum { MOST_DEVICES = 8, MOST_FUNCTIONS = 4096, MOST_PUSHED = 8 };

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  CAPTURE_UNSUPPORTED = 900,
};

/* Module numbers count from 1. */
typedef int (*LoadCallback)(int device, const char *text, char *log,
                            unsigned log_size);
/* Gives the driver's error code. */
typedef int (*LaunchCallback)(int device, int module, const char *name,
                              unsigned blocks, unsigned threads,
                              unsigned shared, uint64_t stream,
                              void **arguments);
typedef int (*CapturingCallback)(uint64_t stream);

typedef struct {
  int major, minor;
} Context;

typedef struct {
  Context *context;
  int number;
} Module;

typedef struct {
  Module *module;
  char name[256];
  unsigned shared_limit;
} Function;

static LoadCallback load_callback;
static LaunchCallback launch_callback;
static CapturingCallback capturing_callback;
static Context contexts[MOST_DEVICES];
static int device_count;
static Module modules[MOST_FUNCTIONS];
static Function functions[MOST_FUNCTIONS];
static int module_count, function_count;
static __thread Context *stack[MOST_PUSHED];
static __thread int pushed;

void mock_set(LoadCallback load, LaunchCallback launch,
              CapturingCallback capturing) {
  load_callback = load, launch_callback = launch,
  capturing_callback = capturing;
  device_count = module_count = function_count = 0;
}
void mock_add_device(int major, int minor) {
  contexts[device_count++] = (Context){major, minor};
}
int mock_is_pushed(void) { return pushed; }

static Context *current(void) { return pushed ? stack[pushed - 1] : 0; }
static int number_of(const Context *context) { return context - contexts; }

int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                        uint64_t flags, int *status) {
  char name[300];
  strncpy(name, symbol, 290), name[290] = 0;
  *function = dlsym(RTLD_DEFAULT, name);
  if (status)
    *status = *function ? 0 : 1;
  return *function ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **function, int version,
                     uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, 0);
}
int cuInit(unsigned flags) { return SUCCESS; }
int cuDriverGetVersion(int *version) {
  *version = 13000;
  return SUCCESS;
}
int cuDeviceGet(int *device, int index) {
  *device = index;
  return 0 <= index && index < device_count ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (attribute != 75 && attribute != 76)
    return INVALID_VALUE;
  *value = attribute == 75 ? contexts[device].major : contexts[device].minor;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **result, int device) {
  *result = &contexts[device];
  return SUCCESS;
}
int cuCtxPushCurrent_v2(void *given) {
  if (pushed == MOST_PUSHED)
    return INVALID_CONTEXT;
  stack[pushed++] = given;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(void **given) {
  if (!pushed)
    return INVALID_CONTEXT;
  if (given)
    *given = current();
  pushed--;
  return SUCCESS;
}
int cuCtxPushCurrent(void *given) { return cuCtxPushCurrent_v2(given); }
int cuCtxPopCurrent(void **given) { return cuCtxPopCurrent_v2(given); }
int cuStreamIsCapturing(void *stream, int *status) {
  *status = capturing_callback((uint64_t)stream);
  return SUCCESS;
}
int cuModuleLoadDataEx(void **module, const void *text, unsigned count,
                       const int *options, void **values) {
  enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
  char *log = 0;
  unsigned log_size = 0;
  for (unsigned i = 0; i < count; i++)
    if (options[i] == ERROR_LOG_BUFFER)
      log = values[i];
    else if (options[i] == ERROR_LOG_BUFFER_SIZE_BYTES)
      log_size = (unsigned)(uintptr_t)values[i];
    else
      return INVALID_VALUE;
  if (!current())
    return INVALID_CONTEXT;
  if (module_count == MOST_FUNCTIONS)
    return INVALID_VALUE;
  if (capturing_callback(0))
    return CAPTURE_UNSUPPORTED;
  Module *made = &modules[module_count++];
  made->context = current();
  made->number = load_callback(number_of(current()), text, log, log_size);
  *module = made;
  return made->number > 0 ? SUCCESS : INVALID_PTX;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (function_count == MOST_FUNCTIONS)
    return INVALID_VALUE;
  if (((Module *)module)->context != current())
    return INVALID_HANDLE;
  Function *made = &functions[function_count++];
  made->module = module;
  made->shared_limit = 48 << 10;
  strncpy(made->name, name, 255);
  *function = made;
  return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8 || value > 99 << 10)
    return INVALID_VALUE; /* what the smallest target gives a block */
  ((Function *)function)->shared_limit = value;
  return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz,
                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **arguments, void **extra) {
  const Function *known = function;
  if (!current())
    return INVALID_CONTEXT;
  if (known->module->context != current())
    return INVALID_HANDLE;
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra ||
      shared > known->shared_limit)
    return INVALID_VALUE;
  return launch_callback(number_of(current()), known->module->number,
                         known->name, gx, bx, shared, (uint64_t)stream,
                         arguments);
}
