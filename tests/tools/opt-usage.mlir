// Wrong usage: a message that says what to do, and exit code 2.

// RUN: not steelyard-opt %s -p 'func.func(scaled-canonicalize)' 2>&1 | FileCheck %s --check-prefix=NESTED
// NESTED: scaled-canonicalize cannot be nested in func.func(...); scaled-canonicalize runs on a module: put it outside

// RUN: not steelyard-opt %s -p 'scaled-canonicalise' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: 'scaled-canonicalise' does not refer to a registered pass or pass pipeline; did you mean scaled-canonicalize?

// RUN: not steelyard-opt %s -p 'scaled-canonicalize{speed=9}' 2>&1 | FileCheck %s --check-prefix=OPTION
// OPTION: scaled-canonicalize has no option 'speed'; its options: max-rewrites

// RUN: not steelyard-opt %s -p 'scaled-canonicalize{max-rewrites=many}' 2>&1 | FileCheck %s --check-prefix=VALUE
// VALUE: option 'max-rewrites' of scaled-canonicalize must be an int from 0 to 2147483647, got 'many'

// RUN: not steelyard-opt %s -p 'scaled-apply-recipe' 2>&1 | FileCheck %s --check-prefix=REQUIRED
// REQUIRED: scaled-apply-recipe needs the option 'recipe', as in scaled-apply-recipe{recipe=...}

// RUN: not steelyard-opt %s -p 'cse,scaled-canonicalize{' 2>&1 | FileCheck %s --check-prefix=OPEN
// OPEN: unbalanced bracket in pipeline

// RUN: not steelyard-opt %s -p 'canonicalize{max-iterations=x}' 2>&1 | FileCheck %s --check-prefix=BUILTIN
// BUILTIN: pipeline element 'canonicalize{max-iterations=x}'

// RUN: not steelyard-opt %s -p cse --mlir-print-ir-after=scaled-canonicalize 2>&1 | FileCheck %s --check-prefix=ABSENT
// ABSENT: --mlir-print-ir-after names scaled-canonicalize, which is not in the pipeline

// RUN: not steelyard-opt %s --frobnicate 2>&1 | FileCheck %s --check-prefix=FLAG
// FLAG: unrecognized arguments: --frobnicate

func.func @f() { return }

// A dim that MLIR's own folding would not survive.
// RUN: not steelyard-opt %s -p canonicalize 2>&1 | FileCheck %s --check-prefix=DIM
// DIM: 'torch.aten.cat' op dim must be from -2 to 1, got 4294967295 [fold_c1]
func.func @wide(%x: !torch.vtensor<[16,64],f32>) -> !torch.vtensor<[32,64],f32> {
  %dim = torch.constant.int 4294967295
  %list = torch.prim.ListConstruct %x, %x : (!torch.vtensor<[16,64],f32>, !torch.vtensor<[16,64],f32>) -> !torch.list<vtensor>
  %0 = torch.aten.cat %list, %dim : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[32,64],f32>
  return %0 : !torch.vtensor<[32,64],f32>
}
