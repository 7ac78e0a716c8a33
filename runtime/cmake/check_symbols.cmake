# Fails when objects of one instruction set define a symbol that others may share.
#
# Kernels are compiled once per instruction set. Of functions and variables with the same name the linker keeps one, so
# a shared inline function compiled for AVX-512 could run on a machine without it. Everything that the objects define
# for others must therefore be in `namespace steelyard::<instruction set>`; `static` functions are nobody else's.
#
# cmake -D NM=<nm> -D ISA=<instruction set> -D OBJECTS=<list> -P check_symbols.cmake

# Names that may be shared, as regular expressions over mangled names, each with its reason.
set(ALLOWED
  # A pointer to the handler of exceptions, the same data in every object that may throw.
  "^DW\\.ref\\.__gxx_personality_v0$")

execute_process(COMMAND "${NM}" --defined-only --extern-only --format=posix ${OBJECTS}
                OUTPUT_VARIABLE LISTING RESULT_VARIABLE FAILED)
if(FAILED)
  message(FATAL_ERROR "${NM} must list the symbols of the ${ISA} kernels, but it failed")
endif()

# As C++ mangles what is in the namespace: functions, members, local statics and their guards, tables of classes, and
# AddressSanitizer's marks of variables.
string(LENGTH "${ISA}" LENGTH)
set(OWN "^(__odr_asan\\.)?_Z(T[VTIS]|GV)?Z?N[KVrRO]*9steelyard${LENGTH}${ISA}")

string(REPLACE "\n" ";" LINES "${LISTING}")
set(COUNT 0)
set(SHARED "")
foreach(LINE IN LISTS LINES)
  if(NOT LINE MATCHES "^([^ ]+) [A-Za-z] ")
    continue() # the name of an object
  endif()
  set(NAME "${CMAKE_MATCH_1}")
  math(EXPR COUNT "${COUNT} + 1")
  if(NAME MATCHES "${OWN}")
    continue()
  endif()
  set(IS_ALLOWED FALSE)
  foreach(PATTERN IN LISTS ALLOWED)
    if(NAME MATCHES "${PATTERN}")
      set(IS_ALLOWED TRUE)
    endif()
  endforeach()
  if(NOT IS_ALLOWED)
    list(APPEND SHARED "${NAME}")
  endif()
endforeach()

if(COUNT EQUAL 0)
  message(FATAL_ERROR "the ${ISA} kernels must define symbols, but ${NM} found none")
endif()
if(SHARED)
  list(REMOVE_DUPLICATES SHARED)
  list(JOIN SHARED "\n  " NAMES)
  message(FATAL_ERROR "kernels must define symbols in namespace steelyard::${ISA} only, got\n  ${NAMES}\n"
                      "make them static, or move them into `namespace steelyard::STEELYARD_ISA`")
endif()
